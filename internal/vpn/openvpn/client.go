package openvpn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"sync"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	Interface  string // created by the client; the caller configures it
	Remote     netip.AddrPort
	ServerName string // required in the server's certificate
	Files      Files
	MTU        int // of the interface, see MTU
	Log        *slog.Logger
}

// Client is the end of a tunnel that connects to a server, again after every failure.
type Client struct {
	config ClientConfig
	runner *runner
	daemon *daemon

	mu     sync.Mutex
	remote netip.AddrPort
	state  State
}

// State describes a client's tunnel.
type State struct {
	Connected bool   // the tunnel carries packets
	Reason    string // why it is not Connected; empty while OpenVPN connects for the first time
}

// StartClient starts OpenVPN as a client. It returns when OpenVPN has begun to connect. OpenVPN
// keeps trying until Stop is called or ctx ends. Errors include *MissingError, *OldError and
// *vpn.TUNError.
func StartClient(ctx context.Context, config ClientConfig) (*Client, error) {
	c := &Client{config: config, remote: config.Remote}
	var err error
	if c.runner, err = newRunner(config.Interface, config.Log); err == nil {
		c.daemon, err = startDaemon(ctx, c.runner.log, c.run, c.runner.close)
	}
	if err != nil {
		return nil, fmt.Errorf("start an OpenVPN client: %w", err)
	}
	return c, nil
}

// Stop ends OpenVPN and returns when the interface has been removed.
func (c *Client) Stop() error { return c.daemon.end() }

// State returns the current state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.daemon.problem(); err != nil {
		return State{Reason: err.Error()}
	}
	return c.state
}

// Restart makes OpenVPN connect anew at once, to a server whose address may have changed.
func (c *Client) Restart(remote netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemon.restart() // nothing that the current openvpn says counts any more
	c.remote = remote
	c.state = State{Reason: fmt.Sprintf("connecting anew to %v", remote)}
}

func (c *Client) run(ctx context.Context, ready func()) error {
	c.mu.Lock()
	a := attempt{remote: c.remote, State: State{Reason: c.state.Reason}}
	c.state = a.State
	c.mu.Unlock()
	err := c.runner.run(ctx, clientArguments(c.config, a.remote), ready, func(l logLine) {
		a.hear(l)
		c.enter(ctx, a.State)
	})
	err = a.ended(err)
	c.enter(ctx, State{Reason: err.Error()})
	return err
}

// enter sets the state, unless the openvpn that it comes from is being replaced.
func (c *Client) enter(ctx context.Context, s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() == nil {
		c.state = s
	}
}

// attempt derives the State from the log of one openvpn.
type attempt struct {
	State
	remote  netip.AddrPort
	problem string // the most specific one since it began to connect
	refusal string // the server's reason for a refusal
}

var restarting = regexp.MustCompile(`^SIGUSR1\[soft,([^\]]*)\] received, process restarting$`)

func (a *attempt) hear(l logLine) {
	refused, isRefusal := strings.CutPrefix(l.text, "AUTH: Received control message: AUTH_FAILED")
	signal := restarting.FindStringSubmatch(l.text)
	switch {
	case l.text == "Initialization Sequence Completed":
		a.State, a.problem = State{Connected: true}, ""
	case isRefusal:
		a.refusal = cmp.Or(strings.TrimPrefix(refused, ","), "no reason given")
	case signal != nil:
		a.State, a.problem = State{Reason: a.why(signal[1])}, ""
	// Of several problems the first counts, because later ones are consequences, except that one with a
	// certificate is more specific.
	case l.problem() && (a.problem == "" || verdict.MatchString(l.text) && !verdict.MatchString(a.problem)):
		a.problem = l.text
	}
}

// why describes the signal that made openvpn reconnect.
func (a *attempt) why(signal string) string {
	switch {
	case a.Connected && signal == "ping-restart":
		return fmt.Sprintf("no packet from %v for %d s", a.remote, clientPatience)
	case signal == "ping-restart", signal == "tls-error" && strings.HasPrefix(a.problem, "TLS Error: TLS key negotiation failed"):
		return fmt.Sprintf("no TLS handshake with %v within %d s: its UDP port is not reachable, or it refuses our certificate", a.remote, clientPatience)
	case signal == "tls-error":
		return fmt.Sprintf("TLS handshake with %v failed: %s", a.remote, a.problem)
	case a.problem != "":
		return signal + ": " + a.problem
	}
	return signal
}

// ended returns why openvpn has ended: the server's refusal, if there was one, or err.
func (a *attempt) ended(err error) error {
	if a.refusal != "" {
		return errors.New("the server refuses this member: " + a.refusal)
	}
	return err
}
