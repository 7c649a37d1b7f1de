// Package sending limits how single subflows of other processes' MPTCP connections send: their rate, and the time for
// which their data may stay unacknowledged. The MPTCP socket's options cannot do that: it refuses SO_MAX_PACING_RATE
// (EOPNOTSUPP), and only its owner can set TCP_USER_TIMEOUT. A sockops program sets both options on one subflow when
// that sends its next segment. This is early enough, because an idle subflow needs neither. Unlike an iterator over the
// sockets, it needs no CAP_PERFMON, and its cost does not grow with their number. Only internal/agent may import it.
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

// Setting is a limit for a subflow. A lower limit from elsewhere stays in force: a rate that an option granted to the
// peer, or the program's own choice. The zero value sets no limit, so only limits from elsewhere apply.
type Setting struct {
	// Rate limits the payload sent, in bits a second. The kernel spreads segments over time (pacing). Zero: no limit.
	Rate float64
	// UserTimeout is the time after which the kernel ends the subflow if its data stays unacknowledged (RFC 5482).
	// Zero: none; the kernel then waits about a quarter of an hour.
	UserTimeout time.Duration
}

// leastRate is the lowest rate that is set, in bytes a second. At this rate a segment leaves every few seconds. A
// slower subflow would count as dead.
const leastRate = 500

// Setter is the attached program. Its methods may be called from any goroutine.
type Setter struct {
	objects sendingObjects
	link    link.Link
}

// Open makes Set work for subflows that processes of a cgroup open from now on in the thread's network namespace. The
// cgroup is a folder of cgroup v2; if it is empty, the root, which covers all. Programs that clear the flag by which
// this program is called must have been attached to the cgroup earlier. Sockets keep their settings after Close.
//
// granted is the map of rates that peers were granted (option.Exchange.GrantedRates), which apply again when a lower
// setting ends. It may be nil.
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

// Forget withdraws a setting that the subflow has not taken yet, for example because it ended. It is not an error if
// there is none.
func (s *Setter) Forget(local, remote netip.AddrPort) error {
	key := sockops.EndsOf(local, remote)
	if err := s.objects.Settings.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget the setting of the subflow from %v to %v: %w", local, remote, err)
	}
	return nil
}

// Counts returns the numbers of settings that subflows took, and of settings that their sockets refused.
func (s *Setter) Counts() (taken, refused uint64, err error) {
	err = errors.Join(s.objects.Taken.Get(&taken), s.objects.Refused.Get(&refused))
	return taken, refused, err
}
