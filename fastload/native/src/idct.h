/* What the inverse transforms share: libjpeg's constants, in units of 2**-13. */
#ifndef FASTLOAD_IDCT_H
#define FASTLOAD_IDCT_H

#define CONST_BITS 13
#define PASS1_BITS 2
#define F_0_298 2446
#define F_0_390 3196
#define F_0_541 4433
#define F_0_765 6270
#define F_0_899 7373
#define F_1_175 9633
#define F_1_501 12299
#define F_1_847 15137
#define F_1_961 16069
#define F_2_053 16819
#define F_2_562 20995
#define F_3_072 25172

/* What the first pass and the second leave to shift. */
#define SHIFT_1 (CONST_BITS - PASS1_BITS)
#define SHIFT_2 (CONST_BITS + PASS1_BITS + 3)

#endif
