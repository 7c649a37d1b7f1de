package inband

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Our filters are told from those of others by their names; the name also says
// whether the clsact qdisc below them is ours, as the kernel keeps nothing of
// the kind with the qdisc.
const (
	namePrefix   = "dcol-inband-"
	nameSend     = namePrefix + "send"
	nameReceive  = namePrefix + "receive"
	suffixQdisc  = "+qdisc"
	priority     = 220 // before filters whose place the kernel chose (49152 and below)
	filterHandle = 1
)

const (
	atIngress uint32 = netlink.HANDLE_MIN_INGRESS
	atEgress  uint32 = netlink.HANDLE_MIN_EGRESS
)

// InterfaceError says that an interface cannot have our filter.
type InterfaceError struct {
	Name string
	Mend string
	Err  error
}

func (e *InterfaceError) Error() string {
	return fmt.Sprintf("no in-band detours over %s: %v (%s)", e.Name, e.Err, e.Mend)
}

func (e *InterfaceError) Unwrap() error { return e.Err }

// filters keeps one program on the interfaces of one network namespace, at
// ingress or at egress.
type filters struct {
	handle     *netlink.Handle
	parent     uint32
	name       string
	ethernet   *ebpf.Program
	headerless *ebpf.Program
}

// set puts the program on exactly these interfaces. It goes on past one that
// does not take it.
func (f *filters) set(interfaces []int) error {
	state, err := readQdiscs(f.handle)
	if err != nil {
		return err
	}
	var failed []error
	for _, link := range state.links {
		attrs := link.Attrs()
		if slices.Contains(interfaces, attrs.Index) {
			err = f.add(link, state.kinds[attrs.Index])
		} else if state.kinds[attrs.Index] != "" {
			err = removeOurs(f.handle, link, state.kinds[attrs.Index], f.parent)
		} else {
			continue
		}
		if err != nil && !gone(f.handle, attrs.Index) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (f *filters) add(link netlink.Link, qdisc string) error {
	attrs := link.Attrs()
	program, err := f.programFor(attrs)
	if err != nil {
		return err
	}
	made := false
	switch {
	case qdisc == "":
		if err := f.handle.QdiscAdd(clsact(attrs.Index)); err != nil {
			return fmt.Errorf("add a clsact qdisc to %s: %w", attrs.Name, err)
		}
		made = true
	case qdisc != "clsact" && f.parent == atEgress:
		return &InterfaceError{
			Name: attrs.Name,
			Mend: "put its filters into a clsact qdisc, which can do all the same",
			Err:  fmt.Errorf("it has a qdisc of kind %s, which has no place for filters at egress", qdisc),
		}
	}
	there, err := listFilters(f.handle, link, qdisc)
	if err != nil {
		return err
	}
	if !made && slices.ContainsFunc(there.ours(0), madeQdisc) {
		made = true
	}
	name := f.name
	if made {
		name += suffixQdisc
	}
	id, err := programID(program)
	if err != nil {
		return err
	}
	for _, old := range there.ours(f.parent) {
		if old.Name == name && old.Id == id && old.Handle == filterHandle && old.Priority == priority {
			return nil
		}
	}
	err = f.handle.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: attrs.Index,
			Parent:    f.parent,
			Handle:    filterHandle,
			Priority:  priority,
			Protocol:  unix.ETH_P_IP,
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

func (f *filters) programFor(attrs *netlink.LinkAttrs) (*ebpf.Program, error) {
	switch attrs.EncapType {
	case "ether", "loopback":
		return f.ethernet, nil
	case "none", "ppp", "rawip", "ipip", "tunnel6", "sit":
		return f.headerless, nil
	}
	return nil, &InterfaceError{
		Name: attrs.Name,
		Mend: "leave it to the other kinds of detours",
		Err:  fmt.Errorf("packets of interfaces of type %s have a header we do not know", attrs.EncapType),
	}
}

// CleanUp removes our filters from all interfaces of the calling thread's
// network namespace, and the clsact qdiscs that were made for them, unless
// others use these now. The option's program needs no clean-up: it goes with
// its process.
func CleanUp() error {
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
		if err := removeOurs(handle, link, state.kinds[index], atIngress, atEgress); err != nil && !gone(handle, index) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func removeOurs(handle *netlink.Handle, link netlink.Link, qdisc string, parents ...uint32) error {
	attrs := link.Attrs()
	there, err := listFilters(handle, link, qdisc)
	if err != nil {
		return err
	}
	made, left := false, len(there)
	for _, parent := range parents {
		for _, ours := range there.ours(parent) {
			made = made || madeQdisc(ours)
			if err := handle.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove the filter %s from %s: %w", ours.Name, attrs.Name, err)
			}
			left--
		}
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

// filterList is all filters at ingress and egress of one interface.
type filterList []netlink.Filter

// ours are those of our filters at parent; 0: at either.
func (l filterList) ours(parent uint32) []*netlink.BpfFilter {
	var ours []*netlink.BpfFilter
	for _, filter := range l {
		bpf, ok := filter.(*netlink.BpfFilter)
		if ok && strings.HasPrefix(bpf.Name, namePrefix) && (parent == 0 || bpf.Parent == parent) {
			ours = append(ours, bpf)
		}
	}
	return ours
}

func listFilters(handle *netlink.Handle, link netlink.Link, qdisc string) (filterList, error) {
	places := []uint32{atIngress, atEgress}
	if qdisc == "ingress" { // which shows the one place it has under both names
		places = places[:1]
	}
	var all filterList
	for _, parent := range places {
		some, err := handle.FilterList(link, parent)
		if err != nil {
			return nil, fmt.Errorf("list the filters of %s: %w", link.Attrs().Name, err)
		}
		for _, filter := range some {
			// The kernel names the qdisc; of clsact's two places it says which.
			filter.Attrs().Parent = parent
			all = append(all, filter)
		}
	}
	return all, nil
}

// qdiscs is which interfaces there are, and which of them have a qdisc for
// filters: "clsact", or "ingress", which cannot be there beside it.
type qdiscs struct {
	links []netlink.Link
	kinds map[int]string
}

func readQdiscs(handle *netlink.Handle) (*qdiscs, error) {
	state := &qdiscs{kinds: map[int]string{}}
	err := whole(func() (err error) {
		state.links, err = handle.LinkList()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var all []netlink.Qdisc
	err = whole(func() (err error) {
		all, err = handle.QdiscList(nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the qdiscs: %w", err)
	}
	for _, q := range all {
		if kind := q.Type(); kind == "clsact" || kind == "ingress" {
			state.kinds[q.Attrs().LinkIndex] = kind
		}
	}
	return state, nil
}

// whole asks again when what is listed changed meanwhile.
func whole(list func() error) (err error) {
	for range 10 {
		if err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index,
			Handle:    netlink.MakeHandle(0xffff, 0),
			Parent:    netlink.HANDLE_CLSACT,
		},
		QdiscType: "clsact",
	}
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
