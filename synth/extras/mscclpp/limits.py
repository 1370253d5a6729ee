"""The limits of MSCCL++'s executor (`src/core/include/execution_common.hpp`)."""

# Operations of a thread block, those in a pipeline included.
MAX_OPERATIONS = 64
# Channels of a thread block of each type; also its remote buffers.
MAX_CHANNELS = 16
# Channels of one operation.
MAX_PEERS = 8
# Semaphores of one operation.
MAX_SEMAPHORES = 16
# Blocks wait for each other, so all blocks of a GPU must run at once. Data centers' GPUs have at
# least 80 processors (V100), and a processor may run only one block of 1,024 threads.
MAX_BLOCKS = 64
# The default alignment: all sizes and offsets are multiples of it.
ALIGNMENT_bytes = 16
# Offsets are 32-bit integers.
MAX_BUFFER_bytes = (1 << 32) - ALIGNMENT_bytes
# The iterations of a pipeline are counted in 16 bits.
MAX_ITERATIONS = (1 << 16) - 1
THREADS = 1024
