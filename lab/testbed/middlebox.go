package testbed

import "fmt"

// Middlebox selects how a host treats the experimental TCP options (kinds 253 and 254, RFC 4727) of SYNs that
// it forwards. Some firewalls remove them or drop the SYN.
type Middlebox string

// The kinds of middlebox.
const (
	NoMiddlebox  Middlebox = ""
	StripOptions Middlebox = "strip-options" // overwrites the options with padding
	DropOptions  Middlebox = "drop-options"  // drops SYNs that have them
)

func (m Middlebox) validate() error {
	switch m {
	case NoMiddlebox, StripOptions, DropOptions:
		return nil
	}
	return fmt.Errorf("middlebox %q is unknown: use %s or %s, or none", m, StripOptions, DropOptions)
}

// SetMiddlebox makes the host a middlebox, another one, or none. It must be a
// host that forwards.
func (h *Host) SetMiddlebox(m Middlebox) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	if m != NoMiddlebox && !h.plan.Forward {
		return fmt.Errorf("host %s: %w", h.Name(), errNoForward)
	}
	return h.setRules("middlebox.nft", m)
}
