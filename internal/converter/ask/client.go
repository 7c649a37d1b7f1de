package ask

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

const (
	// Timeout is the usual time that a client waits for the relay's answer. After it, the connection goes directly to
	// its server.
	Timeout = 200 * time.Millisecond
	// silence is the pause before a client asks again after an unanswered question.
	silence = time.Second
	// maxCached is the number of servers for which a client remembers to connect directly.
	maxCached = 4096
	// maxIdle is the number of connections that a client keeps for later questions.
	maxIdle = 2
	// programFor is the time for which a client remembers whether a program is excluded. maxPrograms bounds these programs.
	programFor  = time.Second
	maxPrograms = 1024
)

// Client asks the relay. Several goroutines may call its methods. Each question has its own connection, so none waits
// for another.
type Client struct {
	socket  string
	timeout time.Duration

	mu      sync.Mutex
	idle    []*net.UnixConn
	asleep  time.Time // until then the relay is not asked
	directs map[netip.AddrPort]directly

	programs map[string]verdict
}

// directly is a direct answer that holds for a time.
type directly struct {
	until time.Time
	plain bool
}

// verdict reports whether a program is excluded.
type verdict struct {
	excluded bool
	until    time.Time // then the relay is asked again
}

// NewClient returns a client of the relay with this socket. The client waits for each answer at most for timeout. The
// relay may start later, and may restart.
func NewClient(socket string, timeout time.Duration) *Client {
	return &Client{socket: socket, timeout: timeout, directs: map[netip.AddrPort]directly{}, programs: map[string]verdict{}}
}

// Listens reports whether a relay listens at the socket.
func Listens(socket string) bool {
	conn, err := dial(socket, time.Now().Add(Timeout))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Direct reports whether earlier answers say that connections to a server go directly, and that the server speaks no
// MPTCP. It does not ask the relay.
func (c *Client) Direct(server netip.AddrPort) (direct, plain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.directs) == 0 && c.asleep.IsZero() {
		return false, false
	}
	now := time.Now()
	if known := c.directs[server]; now.Before(known.until) {
		return true, known.plain
	}
	return now.Before(c.asleep), false
}

// Ask asks how to connect to a server. If the relay does not answer, the zero Answer is returned: directly.
func (c *Client) Ask(server netip.AddrPort) Answer {
	reply, ok := c.exchange(request{kind: kindQuestion, server: server})
	if !ok {
		return Answer{}
	}
	answer, err := decodeAnswer(reply)
	if err != nil {
		c.sleep()
		return Answer{}
	}
	if answer.Convert == nil && answer.KeepFor > 0 {
		c.remember(server, answer)
	}
	return answer
}

// Expect tells the relay that the next connection from a local address is for a server. It reports whether the relay
// will serve it.
func (c *Client) Expect(local, server netip.AddrPort) bool {
	reply, ok := c.exchange(request{kind: kindExpect, server: server, local: local})
	if !ok {
		return false
	}
	ok, err := decodeYesOrNo(kindExpected, reply)
	return ok && err == nil
}

// Excludes reports whether all connections of a program go directly. The program is named by the path of its
// executable. Excludes reports true if the relay does not answer.
func (c *Client) Excludes(program string) bool {
	c.mu.Lock()
	known, ok := c.programs[program]
	c.mu.Unlock()
	if now := time.Now(); ok && now.Before(known.until) {
		return known.excluded
	}
	if program == "" || len(program) > MaxProgram {
		return true
	}
	reply, ok := c.exchange(request{kind: kindProgram, program: program})
	if !ok {
		return true
	}
	excluded, err := decodeYesOrNo(kindExcluded, reply)
	if err != nil {
		c.sleep()
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.programs) >= maxPrograms {
		clear(c.programs) // asked again
	}
	c.programs[program] = verdict{excluded, time.Now().Add(programFor)}
	return excluded
}

// Learned reports a converter's answer to the relay: whether a server speaks MPTCP.
func (c *Client) Learned(server netip.AddrPort, mptcp bool) {
	c.exchange(request{kind: kindLearned, server: server, mptcp: mptcp})
}

// Suspect reports to the relay that a converter may have failed.
func (c *Client) Suspect(converter netip.AddrPort) {
	c.exchange(request{kind: kindSuspect, server: converter})
}

// Unserved reports to the relay that a converter did not serve a connection to a server: it could not be reached, or did not
// answer in time.
func (c *Client) Unserved(converter, server netip.AddrPort) {
	c.exchange(request{kind: kindUnserved, server: server, converter: converter})
}

// Refused reports to the relay that a converter was reached, and refused to connect to a server.
func (c *Client) Refused(converter, server netip.AddrPort) {
	c.exchange(request{kind: kindRefused, server: server, converter: converter})
}

// Carried reports a success to the relay: a converter has connected to a server. local is the program's end of its
// connection to the converter, handshake the time of the handshake with the converter, and answer the time until its answer.
func (c *Client) Carried(local, converter, server netip.AddrPort, handshake, answer time.Duration) {
	c.exchange(request{kind: kindCarried, server: server, local: local, converter: converter, handshake: handshake, answer: answer})
}

// FastOpened reports the outcome of a connection to a converter that was to have its Convert message in the SYN.
func (c *Client) FastOpened(converter netip.AddrPort, how FastOpen) {
	c.exchange(request{kind: kindFastOpened, server: converter, how: how})
}

// Close closes the idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
}

// exchange sends a request and returns the reply, if the request has one.
func (c *Client) exchange(r request) (reply []byte, ok bool) {
	deadline := time.Now().Add(c.timeout)
	for {
		conn, used, err := c.connection(deadline)
		if err != nil {
			break
		}
		reply, err = exchangeOn(conn, r, deadline)
		if err == nil {
			c.putBack(conn)
			return reply, true
		}
		conn.Close()
		// The relay closes connections that were idle for a long time, and all connections when it ends.
		if !used || errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	c.sleep()
	return nil, false
}

func exchangeOn(conn *net.UnixConn, r request, deadline time.Time) (reply []byte, err error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := conn.Write(r.encode()); err != nil || !r.answered() {
		return nil, err
	}
	reply = make([]byte, maxPacket)
	n, err := conn.Read(reply)
	return reply[:n], err
}

// connection returns an idle connection, or a new one. used reports that it is not new.
func (c *Client) connection(deadline time.Time) (conn *net.UnixConn, used bool, err error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		conn, c.idle = c.idle[n-1], c.idle[:n-1]
	}
	c.mu.Unlock()
	if conn != nil {
		return conn, true, nil
	}
	conn, err = dial(c.socket, deadline)
	return conn, false, err
}

func dial(socket string, deadline time.Time) (*net.UnixConn, error) {
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.Dial("unixpacket", socket)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func (c *Client) putBack(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == maxIdle {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

// sleep makes all connections go directly for a while.
func (c *Client) sleep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asleep = time.Now().Add(silence)
}

func (c *Client) remember(server netip.AddrPort, answer Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if len(c.directs) >= maxCached {
		for s, known := range c.directs {
			if !now.Before(known.until) {
				delete(c.directs, s)
			}
		}
		if len(c.directs) >= maxCached {
			clear(c.directs) // asked again
		}
	}
	c.directs[server] = directly{now.Add(answer.KeepFor), answer.Plain}
}
