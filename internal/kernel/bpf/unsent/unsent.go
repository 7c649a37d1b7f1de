// Package unsent limits the data that waits in the socket of an MPTCP subflow before it is sent. The kernel's scheduler
// gives hundreds of kilobytes to subflows long before their windows allow sending them. This data must then take that
// path, however slow it has become, and data from other subflows waits for it at the receiver. With a limit of a few
// congestion windows, the scheduler decides late, by the present speed of the subflows.
//
// The package sets TCP_NOTSENT_LOWAT on each subflow. On the MPTCP socket that option means something else: since Linux
// 6.9, data that no subflow has yet. Only internal/agent may import the package.
package unsent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux limit limit.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// The limit of unsent data in a subflow is the larger of leastWindows and leastBytes. A limit of less than a few
// windows is too low: while a lost packet is sent again, no data is acknowledged in order, and the kernel hands out
// none. On two paths of 10 Mbit/s, one with 0.5 % loss, a limit of one window cost 6 % of the throughput, two windows 3
// %, four nothing.
const (
	leastBytes   = 16 << 10
	leastWindows = 4 // congestion windows
)

// Limit is the attached program.
type Limit struct {
	objects limitObjects
	link    link.Link
}

// Open limits the subflows that processes of a cgroup open from now on in the thread's network namespace. The cgroup is
// a folder of cgroup v2; if it is empty, the root, which covers all. The program works until the Limit is closed or
// its process ends. Existing sockets keep their limit.
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

// Close detaches the program.
func (l *Limit) Close() error { return errors.Join(l.link.Close(), l.objects.Close()) }
