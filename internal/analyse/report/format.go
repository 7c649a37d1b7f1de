package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/units"
)

// most returns the keys, those with the largest counts first.
func most(m map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
}

// number formats n with commas between thousands.
func number[T uint64 | int](n T) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural formats a count of things. what is the singular.
func plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	switch {
	case strings.HasSuffix(what, "ss"), strings.HasSuffix(what, "x"):
		return number(n) + " " + what + "es"
	}
	return number(n) + " " + what + "s"
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return number(n) + " times"
}

// share describes a part of all in words.
func share(part, of uint64) string {
	switch part {
	case 0:
		return "none"
	case of:
		return "all"
	}
	return percent(part, of)
}

func percent(part, of uint64) string {
	if of == 0 {
		return "none"
	}
	share := 100 * float64(part) / float64(of)
	switch {
	case part == 0:
		return "0 %"
	case part == of:
		return "100 %"
	case share < 10:
		return fmt.Sprintf("%.1f %%", share)
	}
	return fmt.Sprintf("%.0f %%", share)
}

func span(seconds float64) string {
	switch {
	case seconds == 0:
		return "0 s"
	case seconds < 1e-3:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	case seconds < 120:
		return fmt.Sprintf("%.3g s", seconds)
	case seconds < 7200:
		return fmt.Sprintf("%.3g min", seconds/60)
	}
	return fmt.Sprintf("%.3g h", seconds/3600)
}

func size(bytes float64) string { return units.FormatBytes(uint64(math.Round(bytes))) }
