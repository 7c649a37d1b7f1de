package netstate

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address is a local address from which connections can be made.
type Address struct {
	Addr    netip.Addr
	IfIndex int
}

// Addresses is a handle on the addresses and routes of one network namespace.
type Addresses struct{ handle *netlink.Handle }

// OpenAddresses opens a handle on the calling thread's network namespace.
func OpenAddresses() (*Addresses, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return &Addresses{handle: handle}, nil
}

// Close releases the handle.
func (a *Addresses) Close() { a.handle.Close() }

// Usable returns the addresses of global scope on interfaces that are up, in a stable order,
// without tentative, deprecated or duplicate ones.
func (a *Addresses) Usable() ([]Address, error) {
	return a.list(isUsable)
}

func isUsable(addr *netlink.Addr) bool {
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	return addr.Scope == unix.RT_SCOPE_UNIVERSE && addr.Flags&unusable == 0
}

// Own returns every address of this host, whatever its scope and state, in a stable order.
func (a *Addresses) Own() ([]Address, error) {
	return a.list(func(*netlink.Addr) bool { return true })
}

func (a *Addresses) list(want func(*netlink.Addr) bool) ([]Address, error) {
	links, err := consistent(a.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	up := make(map[int]bool, len(links))
	for _, l := range links {
		up[l.Attrs().Index] = l.Attrs().Flags&net.FlagUp != 0
	}
	addrs, err := consistent(func() ([]netlink.Addr, error) { return a.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var found []Address
	for i := range addrs {
		ip, ok := netip.AddrFromSlice(addrs[i].IP)
		if ok && up[addrs[i].LinkIndex] && want(&addrs[i]) {
			found = append(found, Address{Addr: ip.Unmap(), IfIndex: addrs[i].LinkIndex})
		}
	}
	slices.SortFunc(found, func(a, b Address) int {
		return cmp.Or(cmp.Compare(a.IfIndex, b.IfIndex), a.Addr.Compare(b.Addr))
	})
	return found, nil
}

// SourceFor returns the source address and the interface that packets to dst use now.
func (a *Addresses) SourceFor(dst netip.Addr) (Address, error) {
	routes, err := a.handle.RouteGet(dst.AsSlice())
	if err != nil {
		return Address{}, fmt.Errorf("route to %v: %w", dst, err)
	}
	for _, r := range routes {
		if src, ok := netip.AddrFromSlice(r.Src); ok {
			return Address{Addr: src.Unmap(), IfIndex: r.LinkIndex}, nil
		}
	}
	return Address{}, fmt.Errorf("route to %v: the kernel names no source address", dst)
}
