package inband

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

const (
	namePrefix  = tcfilter.Prefix + "inband-"
	nameSend    = namePrefix + "send"
	nameReceive = namePrefix + "receive"
	priority    = 220
)

// InterfaceError reports that an interface cannot have our filter.
type InterfaceError = tcfilter.InterfaceError

// newFilter returns a filter for IPv4 packets, with a program for each type of interface.
func newFilter(handle *netlink.Handle, parent uint32, name string, ethernet, headerless *ebpf.Program) tcfilter.Filter {
	return tcfilter.Filter{
		Handle: handle, Parent: parent, Name: name, Priority: priority, Protocol: unix.ETH_P_IP,
		Program: func(attrs *netlink.LinkAttrs) (*ebpf.Program, error) {
			switch attrs.EncapType {
			case "ether", "loopback":
				return ethernet, nil
			case "none", "ppp", "rawip", "ipip", "tunnel6", "sit":
				return headerless, nil
			}
			return nil, &InterfaceError{
				Name: attrs.Name,
				Fix:  "leave it to the other kinds of detours",
				Err:  fmt.Errorf("packets of interfaces of type %s have a header we do not know", attrs.EncapType),
			}
		},
	}
}

// CleanUp removes our filters from all interfaces of the calling thread's network namespace, and the clsact qdiscs that
// were made for them, unless others use these now. The program that writes the option needs no clean-up, because it
// ends with its process.
func CleanUp() error { return tcfilter.CleanUp(namePrefix) }
