package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session"
	messages "github.com/detour-collective/dcol/internal/session/wire"
)

// admit asks for in-band detours.
func admit(ctx context.Context, client *session.Client, w io.Writer) error {
	grant, err := client.Tunnel(ctx, messages.TunnelRequest{Kind: messages.InBand})
	if err != nil {
		return fmt.Errorf("ask for in-band detours: %w", err)
	}
	return json.NewEncoder(w).Encode(grant)
}

// proof returns what SYNs are authenticated with under a grant; nil: they need not be.
func proof(grant messages.TunnelGrant) *inband.Auth {
	if len(grant.Key) == 0 {
		return nil
	}
	return &inband.Auth{Key: inband.Key(grant.Key), Client: grant.Client, ClientPort: grant.ClientPort}
}

// expecter has SYNs of chosen connections name a server, whether or not they
// belong to Multipath TCP.
type expecter struct{ sender *inband.Sender }

func (e *expecter) close() {
	if e.sender != nil {
		_ = e.sender.Close()
	}
}

func (e *expecter) expect(ctx context.Context, client *session.Client, order string, w io.Writer) error {
	var words [3]string
	if _, err := fmt.Sscanf(order, expectFormat, &words[0], &words[1], &words[2]); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	var j inband.Join
	var err error
	if j.Local, err = netip.ParseAddrPort(words[0]); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	if j.Remote, err = netip.ParseAddrPort(words[1]); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	if j.Server, err = netip.ParseAddr(words[2]); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	if err := e.open(j.Local.Addr()); err != nil {
		return err
	}
	grant, err := client.Tunnel(ctx, messages.TunnelRequest{Kind: messages.InBand})
	if err != nil {
		return fmt.Errorf("ask for in-band detours: %w", err)
	}
	j.Auth = proof(grant)
	if err := e.sender.Expect(j); err != nil {
		return err
	}
	_, err = io.WriteString(w, expected)
	return err
}

// open puts the programs to work, those of packets where the address is.
func (e *expecter) open(addr netip.Addr) (err error) {
	if e.sender != nil {
		return nil
	}
	if e.sender, err = inband.OpenSender(inband.SenderConfig{}); err != nil {
		return err
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, _ := netip.AddrFromSlice(a.IP); ip.Unmap() == addr {
			return e.sender.Attach([]int{a.LinkIndex})
		}
	}
	return fmt.Errorf("no interface has the address %v", addr)
}

// admit has an asker ask for in-band detours.
func (a *asker) admit() (grant messages.TunnelGrant, err error) {
	line, err := a.order(admitOrder + "\n")
	if err != nil {
		return grant, err
	}
	if err := json.Unmarshal([]byte(line), &grant); err != nil {
		return grant, fmt.Errorf("%s said %q: %w", a.what, line, err)
	}
	return grant, nil
}

// expect has it prepare the next connection between two ports.
func (a *asker) expect(local, waypoint netip.AddrPort, server netip.Addr) error {
	line, err := a.order(fmt.Sprintf(expectFormat, local, waypoint, server))
	if err == nil && line != expected {
		err = fmt.Errorf("%s said %q", a.what, line)
	}
	return err
}
