package waypoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// kernel has the parts of the system that the waypoint uses.
type kernel struct {
	rules      rules.Kernel
	listeners  func() ([]netip.AddrPort, error)
	reserved   netstate.Ports
	own        func() ([]netstate.Address, error)
	onLink     func() ([]netip.Prefix, error)
	addresses  <-chan []netstate.Address // delivers a value when the results of own or onLink may have changed
	interfaces func() ([]netstate.Interface, error)
	// receiver authenticates in-band SYNs. It is nil if that is not wanted, or for the reason in noReceiver.
	receiver   synReceiver
	noReceiver error
	flows      flowTable
	events     flowEvents
	fastKernel
	// guard4 and guard6 are the interfaces from which strangers' packets must not be forwarded, because
	// forwarding was off before us.
	guard4, guard6 []string
	close          func() error // closes all but events, which must be closed before, with a wait for its reader
}

// flowTable is implemented by netstate.Conntrack.
type flowTable interface {
	Flows(netstate.MarkMatch, func(netstate.Flow)) error
	Delete(netstate.MarkMatch) error
	DeleteEach(netstate.MarkMatch, func(netstate.Flow) bool) (int, error)
}

// synReceiver is implemented by inband.Receiver.
type synReceiver interface {
	Attach(interfaces []int) error
	Set(client netip.Addr, slots []inband.Slot) error
	Slots(client netip.Addr) ([]inband.Slot, error)
	Addresses() ([]netip.Addr, error)
	Counters() (inband.Counters, error)
}

// flowEvents is implemented by netstate.FlowEvents.
type flowEvents interface {
	Receive() ([]netstate.FlowEvent, error)
	Close() error
}

// openKernel prepares the host, and opens all parts in the calling thread's network namespace.
func openKernel(config Config) (k kernel, err error) {
	var closers []func() error
	k.close = func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()

	record, err := netstate.OpenRecord(config.Record)
	if err != nil {
		return k, err
	}
	table, err := rules.Open(config.options())
	if err != nil {
		return k, err
	}
	closers = append(closers, table.Close)
	k.rules = table

	listeners, err := netstate.OpenListeners()
	if err != nil {
		return k, err
	}
	closers = append(closers, listeners.Close)
	k.listeners = listeners.TCP
	if k.reserved, err = netstate.ReservedPorts(); err != nil {
		return k, err
	}

	addresses, err := netstate.OpenAddresses()
	if err != nil {
		return k, err
	}
	closers = append(closers, func() error { addresses.Close(); return nil })
	k.own, k.onLink, k.interfaces = addresses.Own, addresses.OnLink, addresses.Interfaces
	ctx, cancel := context.WithCancel(context.Background())
	closers = append(closers, func() error { cancel(); return nil })
	if k.addresses, err = netstate.WatchAddresses(ctx); err != nil {
		return k, err
	}

	receiver, err := inband.OpenReceiver(uint32(config.marks()))
	switch {
	case err != nil:
		k.noReceiver = err // then no filter of ours can be attached either
	case config.InBand == InBandAuthenticated:
		closers = append(closers, receiver.Close)
		k.receiver = receiver
	default: // remove an earlier agent's filters
		if err := errors.Join(receiver.Attach(nil), receiver.Close()); err != nil {
			return k, err
		}
	}

	conntrack, err := netstate.OpenConntrack()
	if err != nil {
		return k, err
	}
	closers = append(closers, conntrack.Close)
	k.flows = conntrack
	// Subscribing makes the kernel load conntrack, whose sysctls do not exist before.
	events, err := netstate.SubscribeFlows(config.marks().Ours())
	if err != nil {
		return k, err
	}
	k.events = events
	fast, closeFast, err := openFastPath(config)
	if err != nil {
		return k, errors.Join(err, events.Close())
	}
	closers = append(closers, closeFast)
	k.fastKernel = fast
	if k.guard4, k.guard6, err = prepareHost(record); err != nil {
		return k, errors.Join(err, events.Close())
	}
	return k, nil
}

// Keys of sysctls.
const (
	forwarding4  = "net/ipv4/ip_forward"
	forwarding6  = "net/ipv6/conf/all/forwarding"
	redirects4   = "net/ipv4/conf/all/accept_redirects"
	conntrackAcc = "net/netfilter/nf_conntrack_acct"
	conntrackEv  = "net/netfilter/nf_conntrack_events"
)

// prepareHost switches on forwarding, and counters and events of conntrack. If forwarding was off
// before us, it returns all present interfaces to be guarded.
func prepareHost(record *netstate.Record) (guard4, guard6 []string, err error) {
	if _, err := record.Set(conntrackAcc, "1"); err != nil {
		return nil, nil, fmt.Errorf("%w (the kernel needs CONFIG_NF_CONNTRACK and CONFIG_NF_CT_NETLINK)", err)
	}
	if value, err := netstate.Sysctl(conntrackEv); err == nil && value == "0" {
		if _, err := record.Set(conntrackEv, "1"); err != nil {
			return nil, nil, err
		}
	}
	interfaces, err := otherInterfaces()
	if err != nil {
		return nil, nil, err
	}
	if err := forwardIPv4(record); err != nil {
		return nil, nil, err
	}
	if record.Changed(forwarding4) {
		guard4 = interfaces
	}
	if _, err := netstate.Sysctl(forwarding6); errors.Is(err, fs.ErrNotExist) {
		return guard4, nil, nil // a kernel without IPv6
	}
	if err := forwardIPv6(record); err != nil {
		return nil, nil, err
	}
	if record.Changed(forwarding6) {
		guard6 = interfaces
	}
	return guard4, guard6, nil
}

func forwardIPv4(record *netstate.Record) error {
	value, err := netstate.Sysctl(forwarding4)
	if err != nil || value == "1" {
		return err
	}
	// Switching forwarding on resets this sysctl.
	if err := record.Keep(redirects4); err != nil {
		return err
	}
	_, err = record.Set(forwarding4, "1")
	return err
}

// forwardIPv6 switches on forwarding of IPv6, and keeps the default routes of interfaces that get
// theirs by router advertisements. With forwarding on, Linux ignores advertisements unless accept_ra
// is 2, and drops the route at once.
func forwardIPv6(record *netstate.Record) error {
	value, err := netstate.Sysctl(forwarding6)
	if err != nil || value == "1" {
		return err
	}
	const root = "/proc/sys"
	paths, err := filepath.Glob(root + "/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return fmt.Errorf("list IPv6 interfaces: %w", err)
	}
	for _, path := range paths {
		key := strings.TrimPrefix(path, root+"/")
		value, err := netstate.Sysctl(key)
		if err != nil || value != "1" {
			continue // the interface is gone, or has its route from elsewhere
		}
		if _, err := record.Set(key, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	_, err = record.Set(forwarding6, "1")
	return err
}

func otherInterfaces() ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	return names, nil
}

// Left reports whether a waypoint whose agent no longer runs has left rules or sysctls for CleanUp in the
// calling thread's network namespace. It reports false if the kernel cannot be asked.
func Left(record string) bool {
	if _, err := os.Stat(record); err == nil {
		return true
	}
	table, err := rules.Open(rules.Options{})
	if err != nil {
		return false
	}
	defer table.Close()
	there, err := table.Present()
	return err == nil && there
}

// CleanUp removes every trace of the waypoint from the calling thread's network namespace, and restores the
// sysctls. It must not be called while an agent runs. The used part of the quota and SwitchOff stay in the
// file memory. Connections are found by their marks. A second call changes nothing.
func CleanUp(record, memory, counts string, marks rules.Marks) error {
	var errs []error
	errs = append(errs, settleMemory(memory), forgetCounts(counts), rules.Delete(), inband.CleanUp(), forward.CleanUp())
	if conntrack, err := netstate.OpenConntrack(); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, conntrack.Delete(marks.Ours()), conntrack.Close())
	}
	if r, err := netstate.OpenRecord(record); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, r.Restore())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up the waypoint: %w", err)
	}
	return nil
}
