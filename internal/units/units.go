// Package units implements the quantities in dcol's files, such as "10mbit", "5ms" or
// "22:00-07:00". Each is parsed in one place and formatted as it would be written.
package units

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of bits per second in whole IP packets, without link-layer framing. Zero means
// unlimited.
type Rate int64

// Share is a part of a whole, 0..1, written as a percentage.
type Share float64

// Duration is a span of time that is never negative.
type Duration time.Duration

// Size is a number of bytes.
type Size int64

// Quota is a number of bytes that may be used, counted in IP packets. Zero means unlimited.
type Quota int64

// The syntax of each kind of value, for errors and documentation; see Form.
const (
	rateForm     = `a rate such as "10mbit" (bit, kbit, mbit, gbit per second), or "unlimited"`
	durationForm = `a time such as "5ms" (us, ms, s, m, h), not negative`
	shareForm    = `a share such as "1%", from "0%" to "100%"`
	sizeForm     = `a size such as "20MB" or "64KiB" (B, KB, MB, GB, KiB, MiB, GiB)`
	quotaForm    = `an amount such as "500GB" or "1.5TB" (MB, GB, TB, MiB, GiB, TiB), or "unlimited"`
)

var (
	rateUnits = []unit{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}
	sizeUnits = []unit{
		{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6},
		{"KiB", 1 << 10}, {"KB", 1e3}, {"B", 1},
	}
	quotaUnits = append([]unit{{"TiB", 1 << 40}, {"TB", 1e12}}, sizeUnits...)
)

type unit struct {
	name  string
	scale float64
}

var quantity = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([A-Za-z%]+)$`)

// parseQuantity parses a quantity such as "10mbit" into a whole number of the base unit. Units are
// case-insensitive.
func parseQuantity(text string, units []unit) (int64, bool) {
	m := quantity.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return 0, false
	}
	number, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	for _, u := range units {
		if !strings.EqualFold(u.name, m[2]) {
			continue
		}
		v := math.Round(number * u.scale)
		if v >= 1<<53 {
			return 0, false
		}
		return int64(v), true
	}
	return 0, false
}

// noQuantity is the error about a text that is a quantity of zero, which is not allowed, or no quantity.
func noQuantity(text []byte, zero bool, form string) error {
	if zero {
		return fmt.Errorf("%q is zero: write %s", text, form)
	}
	return fmt.Errorf("%q is not %s", text, form)
}

// formatQuantity formats v in the largest unit that divides it, so that parsing the result yields
// the same number.
func formatQuantity(v int64, units []unit) string {
	for _, u := range units {
		scale := int64(u.scale)
		if v != 0 && v%scale == 0 || scale == 1 {
			return strconv.FormatInt(v/scale, 10) + u.name
		}
	}
	return ""
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rate) UnmarshalText(text []byte) error {
	if strings.EqualFold(strings.TrimSpace(string(text)), "unlimited") {
		*r = 0
		return nil
	}
	v, ok := parseQuantity(string(text), rateUnits)
	if !ok || v == 0 {
		return noQuantity(text, ok, rateForm)
	}
	*r = Rate(v)
	return nil
}

func (r Rate) String() string {
	if r == 0 {
		return "unlimited"
	}
	return formatQuantity(int64(r), rateUnits)
}

// MarshalText implements encoding.TextMarshaler.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Mbps returns the rate in 10^6 bits per second.
func (r Rate) Mbps() float64 { return float64(r) / 1e6 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", ""))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not %s", text, durationForm)
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Std returns the duration as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Seconds returns the duration in seconds.
func (d Duration) Seconds() float64 { return time.Duration(d).Seconds() }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(text []byte) error {
	m := quantity.FindStringSubmatch(strings.TrimSpace(string(text)))
	if m == nil {
		return fmt.Errorf("%q is not %s", text, shareForm)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil || m[2] != "%" || v > 100 {
		return fmt.Errorf("%q is not %s", text, shareForm)
	}
	*s = Share(v / 100)
	return nil
}

func (s Share) String() string {
	return strconv.FormatFloat(math.Round(float64(s)*1e8)/1e6, 'f', -1, 64) + "%"
}

// MarshalText implements encoding.TextMarshaler.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	v, ok := parseQuantity(string(text), sizeUnits)
	if !ok || v == 0 {
		return noQuantity(text, ok, sizeForm)
	}
	*s = Size(v)
	return nil
}

func (s Size) String() string { return formatQuantity(int64(s), sizeUnits) }

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *Quota) UnmarshalText(text []byte) error {
	if strings.EqualFold(strings.TrimSpace(string(text)), "unlimited") {
		*q = 0
		return nil
	}
	v, ok := parseQuantity(string(text), quotaUnits)
	if !ok || v == 0 {
		return noQuantity(text, ok, quotaForm)
	}
	*q = Quota(v)
	return nil
}

func (q Quota) String() string {
	if q == 0 {
		return "unlimited"
	}
	return formatQuantity(int64(q), quotaUnits)
}

// MarshalText implements encoding.TextMarshaler.
func (q Quota) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// Form describes the syntax of a Rate.
func (Rate) Form() string { return rateForm }

// Form describes the syntax of a Duration.
func (Duration) Form() string { return durationForm }

// Form describes the syntax of a Share.
func (Share) Form() string { return shareForm }

// Form describes the syntax of a Size.
func (Size) Form() string { return sizeForm }

// Form describes the syntax of a Quota.
func (Quota) Form() string { return quotaForm }
