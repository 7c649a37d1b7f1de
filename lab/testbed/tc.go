package testbed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// setQdisc sets an interface's root queueing discipline. It changes an existing one of the same kind, which keeps its
// packets, and replaces one of another kind. Like all functions in this file, it acts in the calling thread's network
// namespace.
func setQdisc(iface, kind string, options *nl.RtAttr) error {
	link, err := findLink(iface)
	if err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Parent: netlink.HANDLE_ROOT})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
	req.AddData(options)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set %s on %s: %w", kind, iface, err)
	}
	return nil
}

// removeQdisc restores an interface's default discipline.
func removeQdisc(iface string) error {
	link, err := findLink(iface)
	if err != nil {
		return err
	}
	err = netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT,
	}})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the discipline of %s: %w", iface, err)
	}
	return nil
}

// dropAll starts or stops dropping all packets that an interface should send. It uses a queue without room.
func dropAll(iface string, on bool) error {
	if !on {
		return removeQdisc(iface)
	}
	limit := binary.NativeEndian.AppendUint32(nil, 0) // struct tc_fifo_qopt
	return setQdisc(iface, "pfifo", nl.NewRtAttr(nl.TCA_OPTIONS, limit))
}

// Attributes of netem (linux/pkt_sched.h) that have no name in the netlink library.
const (
	netemRate      = 6
	netemRate64    = 8
	netemLatency64 = 10
	netemJitter64  = 11
	netemPRNGSeed  = 14 // since Linux 6.6, ignored by older ones
)

// netemOptions converts p to options of netem. netem's limit counts packets, both queued and propagating. So the
// queue's bytes are converted to full packets, and the packets that the line holds are added.
func netemOptions(p LinkParams, mtu int, seed uint64) *nl.RtAttr {
	limit := int64(1 << 20)
	if p.Rate > 0 {
		onLine := p.Rate / 8 * (p.Delay + p.Jitter).Nanoseconds() / 1e9
		limit = (int64(p.QueueBytes())+onLine)/int64(mtu) + 1
	}
	ne := binary.NativeEndian
	qopt := make([]byte, 24) // struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
	ne.PutUint32(qopt[4:], uint32(limit))
	ne.PutUint32(qopt[8:], uint32(p.Loss*float64(^uint32(0))))

	options := nl.NewRtAttr(nl.TCA_OPTIONS, qopt)
	options.AddRtAttr(netemLatency64, ne.AppendUint64(nil, uint64(p.Delay.Nanoseconds())))
	options.AddRtAttr(netemJitter64, ne.AppendUint64(nil, uint64(p.Jitter.Nanoseconds())))
	options.AddRtAttr(netemPRNGSeed, ne.AppendUint64(nil, seed))
	rate := make([]byte, 16) // struct tc_netem_rate: rate, packet_overhead, cell_size, cell_overhead
	bytesPerSecond := uint64(p.Rate / 8)
	overhead := int32(-ethernetHeader)
	ne.PutUint32(rate[0:], uint32(min(bytesPerSecond, uint64(^uint32(0)))))
	ne.PutUint32(rate[4:], uint32(overhead))
	options.AddRtAttr(netemRate, rate)
	if bytesPerSecond > uint64(^uint32(0)) {
		options.AddRtAttr(netemRate64, ne.AppendUint64(nil, bytesPerSecond))
	}
	return options
}

// probeNetem tries to use netem, and returns an error if the kernel has none.
func probeNetem() error {
	if err := setQdisc("lo", "netem", netemOptions(LinkParams{}, maxMTU, 0)); err != nil {
		return err
	}
	return removeQdisc("lo")
}
