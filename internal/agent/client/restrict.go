package client

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/sending"
	"github.com/detour-collective/dcol/internal/path"
)

// sendingHost sets how this host's subflows send.
type sendingHost struct {
	setter setter // nil: no policy needs it, or the host cannot have it
}

// setter sets how subflows send. It is *sending.Setter.
type setter interface {
	Set(local, remote netip.AddrPort, setting sending.Setting) error
	Forget(local, remote netip.AddrPort) error
}

// openSetter opens the setter, if a policy needs it.
func (h *host) openSetter(cgroup string, granted *ebpf.Map, policies []config.Policy) setter {
	if !slices.ContainsFunc(policies, func(p config.Policy) bool { return p.Restricts() }) {
		return nil
	}
	s, err := sending.Open(cgroup, granted)
	if err != nil {
		h.problems = append(h.problems, fmt.Sprintf("policies do not limit what this host sends, and their user timeouts do not apply ([[policy]] limit, near_quota, user_timeout): %v", err))
		h.log.Warn("policies do not limit what this host sends, and their user timeouts do not apply", "err", err)
		return nil
	}
	h.undo = append(h.undo, s.Close)
	return s
}

// restrict makes a subflow send as its policy wants. It keeps nothing for a subflow that has ended.
func (s *sendingHost) restrict(a path.Restrict) error {
	switch {
	case s.setter == nil:
		return nil
	case a.Gone:
		return s.setter.Forget(a.Ends.Local, a.Ends.Remote)
	default:
		return s.setter.Set(a.Ends.Local, a.Ends.Remote, sending.Setting{Rate: a.Rate, UserTimeout: a.UserTimeout})
	}
}
