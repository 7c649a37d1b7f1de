package units

import (
	"fmt"
	"strings"
)

// Cap bounds a rate, and unlike a Rate it may bound it to 0. The zero value is no bound.
type Cap struct {
	On   bool
	Rate int64 // bits per second
}

const capForm = `a rate such as "4mbit" (bit, kbit, mbit, gbit per second), "0" for none, or "unlimited"`

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Cap) UnmarshalText(text []byte) error {
	word := strings.TrimSpace(string(text))
	if strings.EqualFold(word, "unlimited") {
		*c = Cap{}
		return nil
	}
	v, ok := parseQuantity(word, rateUnits)
	if !ok && word != "0" {
		return fmt.Errorf("%q is not %s", text, capForm)
	}
	*c = Cap{On: true, Rate: v}
	return nil
}

func (c Cap) String() string {
	switch {
	case !c.On:
		return "unlimited"
	case c.Rate == 0:
		return "0"
	default:
		return Rate(c.Rate).String()
	}
}

// MarshalText implements encoding.TextMarshaler.
func (c Cap) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Form returns the syntax, for errors and documentation.
func (Cap) Form() string { return capForm }
