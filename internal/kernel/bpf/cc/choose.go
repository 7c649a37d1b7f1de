package cc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

// Rule chooses the congestion control of connections.
type Rule struct {
	// Cgroup is a folder of the cgroup v2 hierarchy. Empty: its root.
	Cgroup string
	// Ports lists the ports of servers: this host's port for a connection that a client opened to it. Empty: all.
	Ports []uint16
	// Networks lists networks, one of which contains the peer's address. Empty: all.
	Networks []netip.Prefix
	// Name is the name of the congestion control in the kernel.
	Name string
}

// Chosen counts the connections for which a rule chose the congestion control.
type Chosen struct {
	Set     uint64 `json:"set"`
	Refused uint64 `json:"refused"` // by the kernel
}

// AttachError reports why the rules of a cgroup do not apply.
type AttachError struct {
	Cgroup string // as in the rules
	Err    error
}

func (e *AttachError) Error() string { return e.Err.Error() }

func (e *AttachError) Unwrap() error { return e.Err }

// Chooser is the loaded programs.
type Chooser struct {
	programs []*program
	places   [][]place // of each rule
}

// place is an entry of a program's table.
type place struct {
	of    *program
	index uint32
}

type program struct {
	cgroup  string
	objects chooseObjects
	link    link.Link   // nil: not attached
	folder  os.FileInfo // the cgroup that it is attached to
	used    uint32
}

const rulesMax = 64 // RULES of choose.c

// Choose loads programs that set the congestion control of connections of the thread's network namespace, separately
// for each subflow of an MPTCP connection. They work from Attach until the Chooser is closed or its process ends. If
// several rules match a connection, the rules of the innermost cgroup decide, and of these the first.
func Choose(rules []Rule) (_ *Chooser, err error) {
	c := &Chooser{places: make([][]place, len(rules))}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for i, r := range rules {
		if err := Available(r.Name); err != nil {
			return nil, err
		}
		p, err := c.program(r.Cgroup)
		if err != nil {
			return nil, forChoice.unavailable(fmt.Errorf("choose congestion controls: %w", err))
		}
		for _, e := range entries(r) {
			if p.used == rulesMax {
				return nil, fmt.Errorf("choose congestion controls: there are more than %d combinations of ports and networks for one cgroup; merge some", rulesMax)
			}
			if err := p.objects.Rules.Put(p.used, e); err != nil {
				return nil, fmt.Errorf("tell the program its rules: %w", err)
			}
			c.places[i] = append(c.places[i], place{of: p, index: p.used})
			p.used++
		}
	}
	return c, nil
}

// Attach applies the rules to connections that processes of their cgroups open or accept from now on. It returns an
// error for each cgroup to which it could not attach, for example because the cgroup does not exist. Call it again to
// attach to cgroups that have appeared, or were removed and made again.
func (c *Chooser) Attach() (failed []*AttachError) {
	for _, p := range c.programs {
		if err := p.attach(); err != nil {
			err = forChoice.unavailable(fmt.Errorf("choose congestion controls: %w", err))
			failed = append(failed, &AttachError{Cgroup: p.cgroup, Err: err})
		}
	}
	return failed
}

// Available returns an error if the kernel has neither a congestion control of that name nor a module for it.
func Available(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look for the congestion control %s: %w", name, err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	if errors.Is(err, unix.ENOENT) {
		return &UnavailableError{
			Fix: fmt.Sprintf("choose one of `sysctl net.ipv4.tcp_available_congestion_control`, or load its module: modprobe tcp_%s", name),
			Err: fmt.Errorf("this kernel has no congestion control %q", name),
		}
	}
	if err != nil {
		return fmt.Errorf("look for the congestion control %s: %w", name, err)
	}
	return nil
}

// program returns the program of a cgroup. All programs share the map of connections that have been decided.
func (c *Chooser) program(cgroup string) (*program, error) {
	for _, p := range c.programs {
		if p.cgroup == cgroup {
			return p, nil
		}
	}
	spec, err := loadChoose()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	cookie, err := sockops.NamespaceCookie()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["netns_cookie"].Set(cookie); err != nil {
		return nil, fmt.Errorf("tell the program its namespace: %w", err)
	}
	if err := spec.Variables["number"].Set(uint64(len(c.programs))); err != nil {
		return nil, fmt.Errorf("tell the program its number: %w", err)
	}
	options := &ebpf.CollectionOptions{}
	if len(c.programs) > 0 {
		options.MapReplacements = map[string]*ebpf.Map{"decided": c.programs[0].objects.Decided}
	}
	p := &program{cgroup: cgroup}
	if err := spec.LoadAndAssign(&p.objects, options); err != nil {
		return nil, fmt.Errorf("load the program: %w", err)
	}
	c.programs = append(c.programs, p)
	return p, nil
}

// attach attaches the program to its cgroup if necessary. The kernel does not call a program that is attached to a
// removed cgroup.
func (p *program) attach() error {
	if p.link != nil {
		if p.cgroup == "" {
			return nil
		}
		now, err := os.Stat(p.cgroup)
		if err == nil && os.SameFile(now, p.folder) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for the cgroup: %w", err)
		}
		err = p.link.Close()
		p.link = nil
		if err != nil {
			return fmt.Errorf("detach from the removed cgroup %s: %w", p.cgroup, err)
		}
	}
	folder, err := sockops.OpenCgroup(p.cgroup)
	if err != nil {
		return err
	}
	defer folder.Close()
	if p.folder, err = folder.Stat(); err != nil {
		return fmt.Errorf("examine the cgroup: %w", err)
	}
	p.link, err = sockops.Attach(folder, p.objects.Choose, ebpf.AttachCGroupSockOps)
	return err
}

// entry is struct rule of choose.c.
type entry struct {
	Address, Mask             [16]byte
	FirstPort, LastPort, Used uint32
	Set, Refused              uint32
	Name                      [nameSize]byte
}

// entries returns a rule's combinations of ports and networks.
func entries(r Rule) (list []entry) {
	type span struct{ first, last uint16 }
	spans := []span{{0, 65535}}
	if len(r.Ports) > 0 {
		spans = nil
		for _, p := range r.Ports {
			spans = append(spans, span{p, p})
		}
	}
	networks := r.Networks
	if len(networks) == 0 {
		networks = []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	for _, n := range networks {
		for _, s := range spans {
			e := entry{FirstPort: uint32(s.first), LastPort: uint32(s.last), Used: 1}
			copy(e.Name[:nameSize-1], r.Name)
			e.Address, e.Mask = wire(n)
			list = append(list, e)
		}
	}
	return list
}

// wire returns a network in the form that the program compares. IPv4 addresses are mapped into IPv6.
func wire(n netip.Prefix) (address, mask [16]byte) {
	bits := n.Bits()
	if n.Addr().Is4() {
		bits += 96
	}
	address = n.Masked().Addr().As16()
	for i := range mask {
		mask[i] = ^byte(0xff >> min(8, max(0, bits-8*i)))
	}
	return address, mask
}

// Chosen returns the counts of each rule, in the order of Choose.
func (c *Chooser) Chosen() ([]Chosen, error) {
	list := make([]Chosen, len(c.places))
	for i, places := range c.places {
		for _, at := range places {
			var e entry
			if err := at.of.objects.Rules.Lookup(at.index, &e); err != nil {
				return nil, fmt.Errorf("read the counts of a rule: %w", err)
			}
			list[i].Set += uint64(e.Set)
			list[i].Refused += uint64(e.Refused)
		}
	}
	return list, nil
}

// Close detaches the programs.
func (c *Chooser) Close() error {
	var errs []error
	for _, p := range c.programs {
		if p.link != nil {
			errs = append(errs, p.link.Close())
		}
	}
	for _, p := range c.programs {
		errs = append(errs, p.objects.Close())
	}
	return errors.Join(errs...)
}
