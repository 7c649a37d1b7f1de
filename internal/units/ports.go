package units

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports is a range of ports.
type Ports struct{ First, Last uint16 }

const portsForm = `a port or a range of ports (1 to 65535) such as "8080" or "8000-8009"`

// Len returns the number of ports.
func (p Ports) Len() int { return int(p.Last) - int(p.First) + 1 }

// Has reports whether the port is in the range.
func (p Ports) Has(port uint16) bool { return p.First <= port && port <= p.Last }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Ports) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, bad := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || bad != nil || from == 0 || to < from {
		return fmt.Errorf("%q is not %s", text, portsForm)
	}
	*p = Ports{uint16(from), uint16(to)}
	return nil
}

func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// MarshalText implements encoding.TextMarshaler.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Form describes the syntax of Ports.
func (Ports) Form() string { return portsForm }
