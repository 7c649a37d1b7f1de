package testbed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// setQdisc makes a queueing discipline an interface's root: an existing one of
// the same kind is changed and keeps its packets, another kind is replaced.
// The calls of this file act in the calling thread's network namespace.
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

// removeQdisc gives an interface its default discipline back.
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

// dropAll makes an interface drop all it should send, by a queue without room,
// or ends that.
func dropAll(iface string, on bool) error {
	if !on {
		return removeQdisc(iface)
	}
	limit := binary.NativeEndian.AppendUint32(nil, 0) // struct tc_fifo_qopt
	return setQdisc(iface, "pfifo", nl.NewRtAttr(nl.TCA_OPTIONS, limit))
}

// Attributes of netem (linux/pkt_sched.h) that the netlink library has no name
// for.
const (
	netemRate      = 6
	netemRate64    = 8
	netemLatency64 = 10
	netemJitter64  = 11
	netemPRNGSeed  = 14 // since Linux 6.6, ignored by older ones
)

// netemOptions are p as options of netem. Its limit counts packets, queued and
// on their way alike, so the queue's bytes are taken as full packets and those
// the line holds are added.
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

// probeNetem reports whether the kernel has netem, by using it.
func probeNetem() error {
	if err := setQdisc("lo", "netem", netemOptions(LinkParams{}, maxMTU, 0)); err != nil {
		return err
	}
	return removeQdisc("lo")
}
