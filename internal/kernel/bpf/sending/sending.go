// Package sending sets how single subflows of MPTCP connections of other processes send: at which rate at most, and how
// long their data may stay unacknowledged. The MPTCP socket's options cannot do that: SO_MAX_PACING_RATE is refused there
// (EOPNOTSUPP), and TCP_USER_TIMEOUT is only its owner's to set. A sockops program sets both options on one subflow when it
// sends its next segment, which is early enough: an idle subflow needs neither. Unlike an iterator over the sockets, it
// needs no CAP_PERFMON, and its cost does not grow with their number. Only internal/agent may import it.
package sending

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux sending sending.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Setting is what a subflow is to have. Lower values that it has by others stay: a rate that was granted to its peer by an
// option, or what its program chose. The zero value leaves it what it has by others.
type Setting struct {
	// Rate bounds the payload sent, in bits a second. The kernel spreads segments over time (pacing). Zero: no bound.
	Rate float64
	// UserTimeout is the time after which the kernel ends the subflow if its data stays unacknowledged (RFC 5482). Zero:
	// none, so the kernel waits about a quarter of an hour.
	UserTimeout time.Duration
}

// leastRate lets a segment leave every few seconds, in bytes a second. A slower subflow counts as dead.
const leastRate = 500

// Setter is the attached program. Its methods may be called from any goroutine.
type Setter struct {
	objects sendingObjects
	link    link.Link
}

// Open makes settings possible on subflows that processes of a cgroup open from now on in the thread's network namespace.
// The cgroup is a folder of cgroup v2; if it is empty, the root, which covers all. Programs that clear the flag by which
// this one is called must have been attached to the cgroup earlier. Sockets keep their settings after Close.
//
// Granted has the rates that peers were granted (option.Exchange.GrantedRates), which hold when a lower setting ends. It may be nil.
func Open(cgroup string, granted *ebpf.Map) (*Setter, error) {
	spec, err := loadSending()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	var shared map[string]*ebpf.Map
	if granted != nil {
		shared = map[string]*ebpf.Map{"granted_rates": granted}
	}
	s := &Setter{}
	s.link, err = sockops.LoadSharing(cgroup, spec, nil, shared, &s.objects, func() *ebpf.Program { return s.objects.SetSending })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close detaches the program. A nil Setter has none.
func (s *Setter) Close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.link.Close(), s.objects.Close())
}

// Set gives a subflow a setting, from its next segment on.
func (s *Setter) Set(local, remote netip.AddrPort, setting Setting) error {
	wanted := sendingSetting{Timeout: uint32(min(max(setting.UserTimeout.Milliseconds(), 0), math.MaxInt32))}
	if setting.Rate > 0 {
		wanted.Rate = uint32(min(max(setting.Rate/8, leastRate), math.MaxUint32))
	}
	key := sockops.EndsOf(local, remote)
	err := s.objects.Settings.Put(&key, &wanted)
	if err == nil {
		err = s.objects.Wished.Set(uint32(1))
	}
	if err != nil {
		return fmt.Errorf("set how the subflow from %v to %v sends: %w", local, remote, err)
	}
	return nil
}

// Forget withdraws a setting that the subflow has not taken yet, as of one that ended. None is no error.
func (s *Setter) Forget(local, remote netip.AddrPort) error {
	key := sockops.EndsOf(local, remote)
	if err := s.objects.Settings.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget the setting of the subflow from %v to %v: %w", local, remote, err)
	}
	return nil
}

// Counts returns the number of settings that subflows took, and of those that their sockets refused.
func (s *Setter) Counts() (taken, refused uint64, err error) {
	err = errors.Join(s.objects.Taken.Get(&taken), s.objects.Refused.Get(&refused))
	return taken, refused, err
}
