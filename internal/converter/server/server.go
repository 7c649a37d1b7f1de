// Package server is the converter's side of the Convert protocol (RFC 8803). docs/converter.md follows the RFC clause
// by clause.
//
//	server.go    Front reads which server a member wants, and answers when the server is reached or not
//	options.go   the TCP options that a member may ask for
//	incoming.go  Incoming takes connections of strangers for a member that listens, and brings them to the member
//	receiver.go  Receiver, on the member's host, leads them to the member's services
//
// A cookie contains the mark of the member's connections, and the waypoint's nftables rules apply the member's limits
// to sockets with that mark. These rules may be missing for a while, so a Front itself also refuses the servers that
// the configuration forbids (Front.Permit).
package server

import (
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/strangers"
)

// serversMost bounds the servers for which a Front remembers whether they speak MPTCP.
const serversMost = 16 << 10

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// limits bounds the connections whose cookie has not arrived yet. A member's cookie comes with its first packet, so
// even many members that share an address have few such connections at a time.
var limits = strangers.Limits{Total: 4096, PerSource: 256}

// Front serves members' connections. New makes it.
type Front struct {
	keys   atomic.Pointer[keys]
	places *strangers.Places
	route  router
	permit atomic.Pointer[func(netip.AddrPort) error]

	mu      sync.Mutex
	servers *known.Servers
}

// router returns how to connect for a Connect TLV, or the error with which to refuse it. mark is the mark in the
// cookie, and mptcp reports whether the message asks for MPTCP.
type router func(to netip.AddrPort, mark uint32, mptcp bool, now time.Time) (*engine.Dial, *rfc8803.Error)

// keys are the valid keys. Cookies that were sealed with the previous one stay valid after a change.
type keys struct{ current, previous cookie.Key }

// New returns a front that accepts cookies sealed with the key.
func New(key cookie.Key) *Front {
	f := &Front{servers: known.NewServers(serversMost), places: strangers.NewPlaces(limits, strangers.NewSeen())}
	f.route = f.toServer
	f.keys.Store(&keys{key, key})
	return f
}

// SetKey changes the key. Cookies of the previous key remain valid until the next change. One goroutine at a time may
// call it.
func (f *Front) SetKey(key cookie.Key) {
	f.keys.Store(&keys{current: key, previous: f.keys.Load().current})
}

// Permit makes the front refuse servers for which check returns an error. Without it, all servers are permitted.
func (f *Front) Permit(check func(netip.AddrPort) error) { f.permit.Store(&check) }

// Open implements engine.Front.
func (f *Front) Open(a engine.Accepted) (engine.Opening, error) {
	return &opening{front: f, client: a.Peer.Addr(), place: f.places.Enter(a.Peer.Addr(), a.HangUp)}, nil
}

// authorize returns the mark in a cookie that client sent.
func (f *Front) authorize(b []byte, client netip.Addr, now time.Time) (mark uint32, err error) {
	k := f.keys.Load()
	mark, err = k.current.Open(b, client, now)
	if errors.Is(err, cookie.ErrForged) {
		mark, err = k.previous.Open(b, client, now)
	}
	if err == nil && mark == 0 {
		err = errors.New("a connection without a mark is subject to no rules")
	}
	return mark, err
}

func (f *Front) support(server netip.AddrPort, now time.Time) known.Support {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.servers.Support(server, now)
}

func (f *Front) learn(server netip.AddrPort, mptcp bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers.Learn(server, mptcp, now)
}

// opening is the state of one connection.
type opening struct {
	front  *Front
	client netip.Addr
	place  *strangers.Place
	info   bool // the client also asked for the supported options
	asks   bool // the client named options for the SYN to the server
	dial   *engine.Dial
}

// Read implements engine.Opening.
func (o *opening) Read(b []byte) engine.Step {
	m, n, err := rfc8803.Decode(b)
	switch {
	case errors.Is(err, rfc8803.ErrShort):
		return engine.Step{}
	case errors.Is(err, rfc8803.ErrNoLength):
		return engine.Step{Reset: true}
	}
	if refusal := o.check(m, err, time.Now()); refusal != nil {
		switch refusal.Code {
		case rfc8803.MalformedMessage, rfc8803.UnsupportedMessage:
			refusal = rfc8803.Echo(refusal.Code, b)
		}
		return engine.Step{Reply: encode(rfc8803.Message{Error: refusal}), Close: true}
	}
	if m.Connect == nil {
		return engine.Step{Reply: encode(rfc8803.Message{Supported: supported}), Close: true}
	}
	return engine.Step{Used: n, Dial: o.dial}
}

// check prepares what the message asks for, or returns the error with which to refuse it. The error does not contain
// the message.
func (o *opening) check(m rfc8803.Message, err error, now time.Time) *rfc8803.Error {
	var unknown rfc8803.UnknownError
	var version rfc8803.VersionError
	switch {
	case errors.As(err, &version):
		return &rfc8803.Error{Code: rfc8803.UnsupportedVersion, Value: []byte{rfc8803.Version}}
	case errors.As(err, &unknown), errors.Is(err, rfc8803.ErrReserved):
		return &rfc8803.Error{Code: rfc8803.UnsupportedMessage}
	case err != nil, m.Connect == nil && !m.Info, m.Supported != nil || m.ExtendedHeader != nil || m.Error != nil:
		return &rfc8803.Error{Code: rfc8803.MalformedMessage}
	}
	// A MissingCookie error would have to contain a cookie, and only the agent knows who is a member.
	mark, err := o.front.authorize(m.Cookie, o.client, now)
	if err != nil {
		return &rfc8803.Error{Code: rfc8803.NotAuthorized}
	}
	o.place.Admit(strconv.FormatUint(uint64(mark), 16))
	if m.Connect == nil {
		return nil
	}
	o.info = m.Info
	return o.prepare(m.Connect, mark, now)
}

// prepare sets what is dialled, or returns the error with which to refuse the message.
func (o *opening) prepare(c *rfc8803.Connect, mark uint32, now time.Time) (refusal *rfc8803.Error) {
	o.asks = len(c.Options) > 0
	wantsMPTCP, refusal := checkOptions(c.Options)
	if refusal != nil {
		return refusal
	}
	to := c.Server
	if a := to.Addr(); to.Port() == 0 || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast {
		return &rfc8803.Error{Code: rfc8803.MalformedMessage}
	}
	o.dial, refusal = o.front.route(to, mark, wantsMPTCP, now)
	return refusal
}

// toServer is a router that connects to the server itself.
func (f *Front) toServer(to netip.AddrPort, mark uint32, mptcp bool, now time.Time) (*engine.Dial, *rfc8803.Error) {
	if permit := f.permit.Load(); permit != nil && (*permit)(to) != nil {
		return nil, rfc8803.ErrorOf(syscall.EACCES, to.Addr())
	}
	mptcp = mptcp || f.support(to, now) != known.Plain
	return &engine.Dial{To: to, MPTCP: mptcp, NoFallback: known.TakesSeveral(to), Mark: mark}, nil
}

// Dialled implements engine.Opening.
func (o *opening) Dialled(r engine.Result) engine.Step {
	if r.Errno != 0 {
		return engine.Step{Reply: encode(rfc8803.Message{Error: rfc8803.ErrorOf(r.Errno, o.dial.To.Addr())}), Close: true}
	}
	if r.MPTCP || r.Plain {
		o.front.learn(o.dial.To, r.MPTCP, time.Now())
	}
	var answer rfc8803.Message
	switch {
	case r.MPTCP:
		answer.ExtendedHeader = mpCapable
	case r.Plain || !o.dial.MPTCP || o.asks:
		answer.ExtendedHeader = []byte{}
	default:
		// SYNs were lost, of this connection or of an earlier one, and the server has answered one without MPTCP. What it
		// would have answered to an offer is unknown. A client that named no options need not be told about options (section 6.2.6).
	}
	if o.info {
		answer.Supported = supported
	}
	return engine.Step{Reply: encode(answer)}
}

// Ended implements engine.Ender.
func (o *opening) Ended() { o.place.Leave() }

// encode encodes an answer. Each fits into a message, because Echo shortens messages, and the list of options repeats
// part of a message.
func encode(m rfc8803.Message) []byte {
	b, err := m.Append(nil)
	if err != nil {
		b, _ = rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.MalformedMessage}}.Append(nil)
	}
	return b
}
