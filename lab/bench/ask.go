package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session"
	messages "github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/remote"
)

// Asker asks a waypoint for many mappings, or to be admitted to in-band detours, over one session like an agent's. The
// benchmark runs it on a member's host, and calls the methods below Run.
type Asker struct {
	Name     string         // the waypoint's name
	Waypoint netip.AddrPort // the address of its sessions
	Server   netip.Addr     // the destination of the mappings

	ctx     context.Context
	session *session.Client
	sender  *inband.Sender // nil until Expect is called
}

// AskerPart is the name of an Asker's program.
const AskerPart = "asker"

// askWorkers is the number of concurrent requests: half of a waypoint's limit per session.
const askWorkers = 256

// Run serves calls of the methods below over in and out, until in ends.
func (a *Asker) Run(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	id, err := collective.Load(identity, log)
	if err != nil {
		return err
	}
	a.ctx = ctx
	a.session = session.NewClient(session.ClientConfig{Identity: id, Name: a.Name, Addr: a.Waypoint, Log: log})
	defer a.session.Close()
	err = crew.Await(ctx, startLimit, 10*time.Millisecond, func() error {
		if s := a.session.State(); !s.Usable() {
			return fmt.Errorf("no session with %s: %w", a.Name, s.Problem)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() {
		if a.sender != nil {
			_ = a.sender.Close() // the process ends
		}
	}()
	return remote.Serve(a, in, out)
}

// Mappings asks for mappings to Count of the server's ports.
type Mappings struct {
	First uint16
	Count int
}

// Granted is the result of Mappings.
type Granted struct {
	Seconds float64
	Port    uint16 // the waypoint's port for the first of the server's ports
}

// Map asks for mappings. It returns an error unless all are granted.
func (a *Asker) Map(ask Mappings, out *Granted) error {
	var next, refused atomic.Int64
	var port atomic.Uint32
	var lastErr atomic.Pointer[error]
	var workers sync.WaitGroup
	start := time.Now()
	for range askWorkers {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(ask.Count); i = next.Add(1) - 1 {
				to := netip.AddrPortFrom(a.Server, ask.First+uint16(i))
				grant, err := a.session.Map(a.ctx, to, to.Port(), false)
				if err != nil {
					refused.Add(1)
					lastErr.Store(&err)
				} else if i == 0 {
					port.Store(uint32(grant.Port))
				}
			}
		})
	}
	workers.Wait()
	*out = Granted{time.Since(start).Seconds(), uint16(port.Load())}
	if err := lastErr.Load(); err != nil {
		return fmt.Errorf("%d of %d requests failed, the last with: %w", refused.Load(), ask.Count, *err)
	}
	return nil
}

// Admit asks for in-band detours.
func (a *Asker) Admit(_ struct{}, grant *messages.TunnelGrant) (err error) {
	if *grant, err = a.session.Tunnel(a.ctx, messages.TunnelRequest{Kind: messages.InBand}); err != nil {
		return fmt.Errorf("ask for in-band detours: %w", err)
	}
	return nil
}

// proof returns the authentication of SYNs under a grant, or nil if they need none.
func proof(grant messages.TunnelGrant) *inband.Auth {
	if len(grant.Key) == 0 {
		return nil
	}
	return &inband.Auth{Key: inband.Key(grant.Key), Client: grant.Client, ClientPort: grant.ClientPort}
}

// Expect makes the SYN of the next connection between two addresses name a server, whether or not the connection
// belongs to Multipath TCP.
func (a *Asker) Expect(j inband.Join, _ *struct{}) error {
	if a.sender == nil {
		if err := a.openSender(j.Local.Addr()); err != nil {
			return err
		}
	}
	var grant messages.TunnelGrant
	if err := a.Admit(struct{}{}, &grant); err != nil {
		return err
	}
	j.Auth = proof(grant)
	return a.sender.Expect(j)
}

// openSender attaches the programs to the interface that has the address.
func (a *Asker) openSender(addr netip.Addr) (err error) {
	if a.sender, err = inband.OpenSender(inband.SenderConfig{}); err != nil {
		return err
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the addresses: %w", err)
	}
	for _, found := range addrs {
		if ip, _ := netip.AddrFromSlice(found.IP); ip.Unmap() == addr {
			return a.sender.Attach([]int{found.LinkIndex})
		}
	}
	return fmt.Errorf("no interface has the address %v", addr)
}

// asker is a running Asker.
type asker struct {
	*crew.Process
	remote *remote.Client
}

// startAsker starts an Asker and waits for its session.
func (s *network) startAsker(ctx context.Context, host, waypoint string) (*asker, error) {
	p, client, err := s.StartRemote(ctx, host, "ask-"+waypoint, s.Part(AskerPart, &Asker{
		Name: waypoint, Waypoint: netip.AddrPortFrom(s.Host(waypoint).Addr4(), crew.SessionPort), Server: s.Host(serverHost).Addr4(),
	})...)
	if err != nil {
		return nil, err
	}
	return &asker{p, client}, nil
}

func (a *asker) call(method string, args, reply any) error {
	if err := a.remote.Call(method, args, reply); err != nil {
		return a.Trouble(err)
	}
	return nil
}

// ask asks for count mappings, beginning with the server's port first.
func (a *asker) ask(first, count int) (got Granted, err error) {
	err = a.call("Map", Mappings{uint16(first), count}, &got)
	return got, err
}

// admit asks for in-band detours.
func (a *asker) admit() (grant messages.TunnelGrant, err error) {
	err = a.call("Admit", struct{}{}, &grant)
	return grant, err
}

// expect prepares the next connection between two addresses.
func (a *asker) expect(local, waypoint netip.AddrPort, server netip.Addr) error {
	return a.call("Expect", inband.Join{Local: local, Remote: waypoint, Server: server}, nil)
}

// askAll makes several askers request count mappings each, at the same time. It returns the time until all were
// granted.
func askAll(askers []*asker, first, count int) (seconds float64, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, a := range askers {
		all.Go(func() {
			got, askErr := a.ask(first, count)
			mu.Lock()
			defer mu.Unlock()
			seconds, err = max(seconds, got.Seconds), errors.Join(err, askErr)
		})
	}
	all.Wait()
	return seconds, err
}
