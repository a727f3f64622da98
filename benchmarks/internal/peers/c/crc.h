/* What a CRC of n bytes costs: folding by carry-less multiplication, eight registers as wide as
 * the processor has them, each line fetched 2 KiB ahead, as crc32c of the product does it, by 128 bits without the CRC32 instruction beside. What
 * comes out means nothing, and a rest of less than eight registers is left out. On processors
 * other than x86-64 the memory is only read. */
#if defined(__x86_64__)
#include <immintrin.h>

#define FOLD(name, isa, vec, keys, load, mul, xor)                                                                  \
	__attribute__((target(isa))) static inline void name(const char *p, size_t n)                                \
	{                                                                                                           \
		static vec kept[8]; /* so that nothing is left out as unused */                                      \
		vec a[8];                                                                                           \
		const vec k = keys;                                                                                 \
		memcpy(a, kept, sizeof a);                                                                          \
		for (; n >= sizeof a; n -= sizeof a, p += sizeof a) {                                               \
			_Pragma("GCC unroll 8") for (size_t i = 0; i < 8; i++)                                      \
			{                                                                                           \
				if (i * sizeof(vec) % 64 == 0)                                                      \
					_mm_prefetch(p + 2048 + i * sizeof(vec), _MM_HINT_T0);                      \
				a[i] = xor(xor(mul(a[i], k, 0), mul(a[i], k, 17)), load((void *)(p + i * sizeof(vec)))); \
			}                                                                                           \
		}                                                                                                   \
		memcpy(kept, a, sizeof a);                                                                          \
	}

#define K1 0x9e4addf8
#define K2 0x740eef02
FOLD(fold128, "sse2,pclmul", __m128i, _mm_set_epi64x(K1, K2), _mm_loadu_si128, _mm_clmulepi64_si128, _mm_xor_si128)
FOLD(fold256, "avx2,vpclmulqdq", __m256i, _mm256_set_epi64x(K1, K2, K1, K2), _mm256_loadu_si256, _mm256_clmulepi64_epi128, _mm256_xor_si256)
FOLD(fold512, "avx512f,vpclmulqdq", __m512i, _mm512_set4_epi64(K1, K2, K1, K2), _mm512_loadu_si512, _mm512_clmulepi64_epi128, _mm512_xor_si512)

static inline void fold(const char *p, size_t n)
{
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
		fold512(p, n);
	else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq"))
		fold256(p, n);
	else
		fold128(p, n);
}
#else
static inline void fold(const char *p, size_t n)
{
	static volatile uint64_t kept;
	uint64_t a = 0, w;
	for (; n >= sizeof w; n -= sizeof w, p += sizeof w) {
		memcpy(&w, p, sizeof w);
		a ^= w;
	}
	kept = a;
}
#endif
