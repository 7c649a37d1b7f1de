// Package keepalive makes TCP send keep-alive probes on single subflows of MPTCP connections that other processes
// opened. Every TCP answers probes, so they distinguish a broken path from an unused one. The socket option of an MPTCP
// socket affects all subflows, and only its owner can set it. A sockops program can set it on one subflow. It sets the
// options when the subflow sends its next segment, and later restores the values of the subflow's own program. Only
// internal/agent may import it.
package keepalive

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux probe probe.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// The first probe leaves a second after the last received segment, and further ones a second apart. The agent ends
// subflows that do not answer, but a direct path only gets probes at longer intervals, and the kernel does not forget
// those between. After count of them, the most that it allows, it ends the subflow. If there is no agent any more, that
// takes two minutes.
const (
	idleSeconds     = 1
	intervalSeconds = 1
	count           = 127 // MAX_TCP_KEEPCNT of the kernel
)

// setting is struct setting of probe.c.
type setting struct{ On, Idle, Interval, Count int32 }

// Prober is the attached program. Its methods may be called from any goroutine.
type Prober struct {
	objects probeObjects
	link    link.Link
}

// Open enables probes on subflows that processes of a cgroup open from now on in the thread's network namespace. The
// cgroup is a folder of cgroup v2; if it is empty, the root, which covers all. Programs that clear the flag by
// which this one is called must have been attached to the cgroup earlier. Probing continues after Close.
func Open(cgroup string) (*Prober, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	settings := map[string]any{"probing": setting{On: 1, Idle: idleSeconds, Interval: intervalSeconds, Count: count}}
	p := &Prober{}
	p.link, err = sockops.Load(cgroup, spec, settings, &p.objects, func() *ebpf.Program { return p.objects.Probe })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Close detaches the program. A nil Prober has none.
func (p *Prober) Close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.link.Close(), p.objects.Close())
}

// Begin starts probing on an idle subflow, from its next segment on.
func (p *Prober) Begin(local, remote netip.AddrPort) error {
	err := p.wish(local, remote, 1)
	if err == nil {
		err = p.objects.Wished.Set(uint32(1))
	}
	if err != nil {
		return fmt.Errorf("begin to probe the subflow from %v to %v: %w", local, remote, err)
	}
	return nil
}

// End stops probing, from the subflow's next segment on.
func (p *Prober) End(local, remote netip.AddrPort) error {
	if err := p.wish(local, remote, 0); err != nil {
		return fmt.Errorf("end to probe the subflow from %v to %v: %w", local, remote, err)
	}
	return nil
}

func (p *Prober) wish(local, remote netip.AddrPort, begin uint32) error {
	key := sockops.EndsOf(local, remote)
	return p.objects.Wishes.Put(&key, &begin)
}
