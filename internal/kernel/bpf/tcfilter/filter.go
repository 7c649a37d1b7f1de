package tcfilter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The names of our filters begin with Prefix. The name also records whether the clsact qdisc is ours, because the
// kernel stores no owner with the qdisc.
const (
	Prefix       = "dcol-"
	suffixQdisc  = "+qdisc"
	filterHandle = 1
)

// The hooks of a filter: incoming packets, before netfilter, or outgoing packets.
const (
	AtIngress uint32 = netlink.HANDLE_MIN_INGRESS
	AtEgress  uint32 = netlink.HANDLE_MIN_EGRESS
)

// InterfaceError reports that an interface cannot have our filter.
type InterfaceError struct {
	Name string
	Fix  string
	Err  error
}

func (e *InterfaceError) Error() string {
	return fmt.Sprintf("no filter of ours on %s: %v (%s)", e.Name, e.Err, e.Fix)
}

func (e *InterfaceError) Unwrap() error { return e.Err }

// Filter maintains one kind of program on interfaces of one network namespace. It is not safe for concurrent use.
type Filter struct {
	Handle *netlink.Handle // of rtnetlink, in the namespace
	Parent uint32          // AtIngress or AtEgress
	Name   string          // begins with Prefix
	// Priority orders the filters of an interface. The kernel assigns 49152 and lower by itself.
	Priority uint16
	Protocol uint16 // ETH_P_...
	// Program returns the program for an interface, or an error if the interface cannot have one.
	Program func(*netlink.LinkAttrs) (*ebpf.Program, error)
}

// Set attaches the program to exactly these interfaces, given by their indexes. A missing interface is not an error.
// If an interface refuses the program, Set continues with the others.
func (f *Filter) Set(interfaces []int) error {
	state, err := readQdiscs(f.Handle)
	if err != nil {
		return err
	}
	var failed []error
	for _, link := range state.links {
		attrs := link.Attrs()
		if slices.Contains(interfaces, attrs.Index) {
			err = f.add(link, state.kinds[attrs.Index])
		} else if state.kinds[attrs.Index] != "" {
			err = remove(f.Handle, link, state.kinds[attrs.Index], f.Name)
		} else {
			continue
		}
		if err != nil && !gone(f.Handle, attrs.Index) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (f *Filter) add(link netlink.Link, qdisc string) error {
	attrs := link.Attrs()
	program, err := f.Program(attrs)
	if err != nil {
		return err
	}
	made := false
	switch {
	case qdisc == "":
		if err := f.Handle.QdiscAdd(clsact(attrs.Index)); err != nil {
			return fmt.Errorf("add a clsact qdisc to %s: %w", attrs.Name, err)
		}
		made = true
	case qdisc != "clsact" && f.Parent == AtEgress:
		return &InterfaceError{
			Name: attrs.Name,
			Fix:  "put its filters into a clsact qdisc, which can do all the same",
			Err:  fmt.Errorf("it has a qdisc of kind %s, which has no place for filters at egress", qdisc),
		}
	}
	there, err := listFilters(f.Handle, link, qdisc)
	if err != nil {
		return err
	}
	if !made && slices.ContainsFunc(there.named(Prefix), madeQdisc) {
		made = true
	}
	name := f.Name
	if made {
		name += suffixQdisc
	}
	id, err := programID(program)
	if err != nil {
		return err
	}
	for _, old := range there.named(f.Name) {
		if old.Name == name && old.Id == id && old.Handle == filterHandle && old.Priority == f.Priority {
			return nil
		}
	}
	err = f.Handle.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: attrs.Index,
			Parent:    f.Parent,
			Handle:    filterHandle,
			Priority:  f.Priority,
			Protocol:  f.Protocol,
		},
		Fd:           program.FD(),
		Name:         name,
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("put the filter %s on %s: %w", name, attrs.Name, err)
	}
	return nil
}

// CleanUp removes the filters whose name begins with prefix from all interfaces of the calling thread's network
// namespace, and the clsact qdiscs that were made for our filters, unless they are in use.
func CleanUp(prefix string) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	defer handle.Close()
	state, err := readQdiscs(handle)
	if err != nil {
		return err
	}
	var failed []error
	for _, link := range state.links {
		index := link.Attrs().Index
		if state.kinds[index] == "" {
			continue
		}
		if err := remove(handle, link, state.kinds[index], prefix); err != nil && !gone(handle, index) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func remove(handle *netlink.Handle, link netlink.Link, qdisc, prefix string) error {
	attrs := link.Attrs()
	there, err := listFilters(handle, link, qdisc)
	if err != nil {
		return err
	}
	made, left := false, len(there)
	for _, ours := range there.named(prefix) {
		made = made || madeQdisc(ours)
		if err := handle.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove the filter %s from %s: %w", ours.Name, attrs.Name, err)
		}
		left--
	}
	if !made || left > 0 || qdisc != "clsact" {
		return nil
	}
	if err := handle.QdiscDel(clsact(attrs.Index)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove our clsact qdisc from %s: %w", attrs.Name, err)
	}
	return nil
}

func madeQdisc(f *netlink.BpfFilter) bool { return strings.HasSuffix(f.Name, suffixQdisc) }

// filterList holds all filters at ingress and egress of one interface.
type filterList []netlink.Filter

// named returns the filters whose name begins with prefix. (A name is used at one hook only.)
func (l filterList) named(prefix string) []*netlink.BpfFilter {
	var found []*netlink.BpfFilter
	for _, filter := range l {
		if bpf, ok := filter.(*netlink.BpfFilter); ok && strings.HasPrefix(bpf.Name, prefix) {
			found = append(found, bpf)
		}
	}
	return found
}

func listFilters(handle *netlink.Handle, link netlink.Link, qdisc string) (filterList, error) {
	places := []uint32{AtIngress, AtEgress}
	if qdisc == "ingress" { // it lists its only hook under both names
		places = places[:1]
	}
	var all filterList
	for _, parent := range places {
		some, err := handle.FilterList(link, parent)
		if err != nil {
			return nil, fmt.Errorf("list the filters of %s: %w", link.Attrs().Name, err)
		}
		for _, filter := range some {
			// The kernel returns the qdisc as parent. Replace it by the hook that was listed.
			filter.Attrs().Parent = parent
			all = append(all, filter)
		}
	}
	return all, nil
}

func gone(handle *netlink.Handle, index int) bool {
	_, err := handle.LinkByIndex(index)
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

func programID(program *ebpf.Program) (int, error) {
	info, err := program.Info()
	if err != nil {
		return 0, fmt.Errorf("read the id of our filter's program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("the kernel gives its programs no ids")
	}
	return int(id), nil
}
