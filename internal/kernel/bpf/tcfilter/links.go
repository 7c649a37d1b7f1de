package tcfilter

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Links maintains one program on interfaces by TCX (Linux 6.6 or newer). Its programs need no clsact qdisc, and run
// before all filters of one. The kernel detaches them when the process ends, also after SIGKILL. Links is not safe for
// concurrent use.
type Links struct {
	Handle  *netlink.Handle // of rtnetlink, in the namespace
	Attach  ebpf.AttachType // ebpf.AttachTCXIngress or ebpf.AttachTCXEgress
	Program *ebpf.Program

	attached map[int]link.Link // by interface
}

// Set attaches the program to exactly these interfaces, given by their indexes. The calling thread must be in the network
// namespace of Handle. A missing interface is not an error. If an interface refuses the program, Set continues with the
// others. An error that wraps ebpf.ErrNotSupported means that the kernel has no TCX.
func (l *Links) Set(interfaces []int) error {
	var failed []error
	for index, attached := range l.attached {
		if !slices.Contains(interfaces, index) || detached(attached) {
			failed = append(failed, attached.Close())
			delete(l.attached, index)
		}
	}
	for _, index := range interfaces {
		if l.attached[index] != nil {
			continue
		}
		if err := l.add(index); err != nil && !gone(l.Handle, index) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (l *Links) add(index int) error {
	attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: l.Program, Attach: l.Attach})
	if err != nil {
		return fmt.Errorf("put a program on the interface %d: %w", index, err)
	}
	if l.attached == nil {
		l.attached = map[int]link.Link{}
	}
	l.attached[index] = attached
	return nil
}

// detached reports whether the kernel has detached a program because its interface is gone. Another interface may have
// its index now.
func detached(l link.Link) bool {
	info, err := l.Info()
	return err != nil || info.TCX() == nil || info.TCX().Ifindex == 0
}
