// Package unsent bounds how much data waits in the socket of an MPTCP subflow before it is sent. The
// kernel's scheduler hands data to subflows long before their windows let it go: hundreds of kilobytes
// that then have to take that path, however slow it has become, while all that came on the others waits for
// them at the receiver. With little unsent in each, a few of its congestion windows, the scheduler decides
// late, by how fast the subflows are now. It is what TCP_NOTSENT_LOWAT does, of which the MPTCP socket's own
// has another meaning (since Linux 6.9: what no subflow has yet). Only internal/agent may import it.
package unsent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux limit limit.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// A subflow may have this much unsent, the more of both. Less than some windows is too little: while a lost
// packet is sent again no data is acknowledged in order, and until then the kernel hands out none. With one
// window two paths of 10 Mbit/s, one of which lost 0.5 %, carried 6 % less, with two 3 %, with four nothing
// less.
const (
	leastBytes   = 16 << 10
	leastWindows = 4 // congestion windows
)

// Limit is the program at work.
type Limit struct {
	objects limitObjects
	link    link.Link
}

// Open bounds the subflows that are opened from now on in the thread's network namespace by processes of a
// cgroup: a folder of cgroup v2, or the root, which covers all, if it is empty. It works until the Limit is
// closed, or its process ends; sockets that exist keep their bound.
func Open(cgroup string) (*Limit, error) { return open(cgroup, leastBytes, leastWindows) }

func open(cgroup string, bytes, windows uint32) (*Limit, error) {
	spec, err := loadLimit()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	settings := map[string]any{"least": bytes, "windows": windows}
	l := &Limit{}
	l.link, err = sockops.Load(cgroup, spec, settings, &l.objects, func() *ebpf.Program { return l.objects.LimitUnsent })
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close takes the program away.
func (l *Limit) Close() error { return errors.Join(l.link.Close(), l.objects.Close()) }
