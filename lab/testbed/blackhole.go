package testbed

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DropForwardedTCP starts or stops dropping all TCP that the host forwards. The host's own traffic and other protocols
// pass. A filter at the egress of each of the host's present interfaces drops the packets, so that no fast path
// bypasses it.
func (h *Host) DropForwardedTCP(on bool) error {
	act := h.removeBlackhole
	if on {
		act = h.addBlackhole
	}
	if err := act(); err != nil {
		return fmt.Errorf("host %s: drop forwarded TCP: %w", h.Name(), err)
	}
	return nil
}

// The name and place of our filters at tc's egress. Their priority is higher than any other program's, because the
// verdict of a filter may end the list.
const (
	blackholeName     = "lab-blackhole"
	blackholePriority = 1
)

func (h *Host) addBlackhole() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lab_blackhole", Type: ebpf.SchedCLS, Instructions: blackhole(), License: "GPL",
	})
	if err != nil {
		return err
	}
	defer program.Close() // the filters hold references
	return h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			index := link.Attrs().Index
			err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}})
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add a clsact qdisc to %s: %w", link.Attrs().Name, err)
			}
			filter := blackholeFilter(index)
			filter.Fd = program.FD()
			if err := netlink.FilterReplace(filter); err != nil {
				return fmt.Errorf("add a filter to %s: %w", link.Attrs().Name, err)
			}
		}
		return nil
	})
}

func (h *Host) removeBlackhole() error {
	return h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		var failed []error
		for _, link := range links {
			err := netlink.FilterDel(blackholeFilter(link.Attrs().Index))
			// It has none, or not even the qdisc.
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
				failed = append(failed, fmt.Errorf("remove the filter of %s: %w", link.Attrs().Name, err))
			}
		}
		return errors.Join(failed...)
	})
}

func blackholeFilter(index int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1,
			Priority: blackholePriority, Protocol: unix.ETH_P_ALL,
		},
		Name: blackholeName, DirectAction: true,
	}
}

// Offsets into struct __sk_buff and into IP headers, and tc's verdicts.
const (
	skbProtocol       = 16
	skbIngressIfindex = 36

	ipv4Protocol = 9
	ipv6Next     = 6

	tcActUnspec = -1 // on to the next filter
	tcActShot   = 2  // dropped

	headerStartNet = 1 // BPF_HDR_START_NET
)

// blackhole drops TCP that came in by an interface. Packets of the host's own programs came in by none.
func blackhole() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, skbIngressIfindex, asm.Word),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R7, asm.R6, skbProtocol, asm.Word),
		asm.HostTo(asm.BE, asm.R7, asm.Half),
		asm.Mov.Imm(asm.R2, ipv4Protocol),
		asm.JEq.Imm(asm.R7, unix.ETH_P_IP, "read"),
		asm.Mov.Imm(asm.R2, ipv6Next),
		asm.JNE.Imm(asm.R7, unix.ETH_P_IPV6, "pass"),

		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("read"),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 1),
		asm.Mov.Imm(asm.R5, headerStartNet),
		asm.FnSkbLoadBytesRelative.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R0, asm.RFP, -8, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "pass"),
		asm.Mov.Imm(asm.R0, tcActShot),
		asm.Return(),

		asm.Mov.Imm(asm.R0, tcActUnspec).WithSymbol("pass"),
		asm.Return(),
	}
}
