#include "nccl_ranks.h"
int main(void) {
    return 0;
}
