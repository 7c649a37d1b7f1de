//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only
// Runs the arithmetic on numbers of a test, so that it can be compared with the Go model.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "wvegas.h"

struct subflows given;
__s64 lia_gives, olia_gives, balia_gives, balia_takes;
struct round round_given;
__s64 round_decides;

SEC("syscall")
int compute(void *ctx)
{
	struct subflows s = given;

	lia_gives = lia_increment(&s);
	olia_gives = olia_increment(&s);
	balia_gives = balia_increment(&s);
	balia_takes = balia_decrease(&s);
	return 0;
}

SEC("syscall")
int compute_round(void *ctx)
{
	struct round r = round_given;

	round_decides = wvegas_round(&r);
	round_given = r;
	return 0;
}

char _license[] SEC("license") = "GPL";
