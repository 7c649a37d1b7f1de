package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// Host returns the Env of the real host. The caller must set Now, Built, Config, Identity and what
// the agent reports.
func Host() *Env {
	return &Env{
		FS: os.DirFS("/"),
		System: System{
			// Cached, because several checks use it and it takes a while.
			SocketMethods:     sync.OnceValue(mptcpify.Methods),
			ForwardDrops:      sync.OnceValues(forwardDrops),
			MarkUses:          othersMarks,
			Endpoints:         endpoints,
			PlainTCP:          mptcp.PlainTCP,
			ListenUDP:         listenUDP,
			ClockSynchronised: clockSynchronised,
			AskRouter:         askRouter,
			FindOpenVPN:       openvpn.Find,
			TryInBandSender:   tryInBandSender,
			TryInBandReceiver: tryInBandReceiver,
			TryWireGuard:      TryWireGuard,
			TryTunnelRouting:  tryTunnelRouting,
			TryCongestion:     tryCongestion,
			TryOptions:        tryOptions,
			TryFallback:       TryFallback,
			TryFastOpen:       tryFastOpen,
		},
	}
}

func forwardDrops() ([]string, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	drops, err := conn.ForwardDrops()
	return drops, errors.Join(err, conn.Close())
}

// othersMarks leaves out the tables of dcol.
func othersMarks() ([]netstate.MarkUse, error) {
	return netstate.MarkUses(func(table string) bool { return strings.HasPrefix(table, "dcol") })
}

// endpoints counts what `ip mptcp endpoint` shows (linux/mptcp_pm.h).
func endpoints() (int, error) {
	const cmdGetAddr, version = 3, 1
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return 0, fmt.Errorf("open a generic netlink socket: %w", err)
	}
	defer conn.Close()
	family, err := conn.GetFamily("mptcp_pm")
	if err != nil {
		return 0, fmt.Errorf("find the path manager's netlink family: %w", err)
	}
	request := genetlink.Message{Header: genetlink.Header{Command: cmdGetAddr, Version: version}}
	answers, err := conn.Execute(request, family.ID, netlink.Request|netlink.Dump)
	if err != nil {
		return 0, fmt.Errorf("list the endpoints: %w", err)
	}
	return len(answers), nil
}

func listenUDP(address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// askRouter asks the router without opening a port.
func askRouter(ctx context.Context) (own netip.Addr, protocol string, err error) {
	addresses, err := netstate.OpenAddresses()
	if err != nil {
		return own, "", err
	}
	defer addresses.Close()
	gateway, own, err := addresses.Gateway()
	if err != nil || !nat.IsPrivate(own) || !gateway.IsValid() {
		return own, "", err
	}
	protocol, err = portmap.Spoken(ctx, portmap.Network{Gateway: gateway, Own: own})
	return own, protocol, err
}

func clockSynchronised() (bool, error) {
	const timeError = 5 // TIME_ERROR of adjtimex(2): not synchronised
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, os.NewSyscallError("adjtimex", err)
	}
	return state != timeError && t.Status&unix.STA_UNSYNC == 0, nil
}
