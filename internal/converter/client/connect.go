package client

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// CONNECT returns a front for programs that use an HTTP proxy. It knows only the method CONNECT (RFC 9110, section 9.3.6).
func (c *Client) CONNECT() engine.Front { return connectFront{c} }

type connectFront struct{ client *Client }

// Open implements engine.Front.
func (f connectFront) Open(a engine.Accepted) (engine.Opening, error) {
	return &tunnel{named{client: f.client, peer: a.Peer.Addr(), reply: connectReply}}, nil
}

// tunnel is the state of one connection.
type tunnel struct{ named }

// Read implements engine.Opening.
func (o *tunnel) Read(b []byte) engine.Step {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return engine.Step{}
	}
	end += len("\r\n\r\n")
	request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b[:end])))
	if err != nil {
		return refusal(http.StatusBadRequest, "The request is no HTTP that this proxy understands.")
	}
	if request.Method != http.MethodConnect {
		return refusal(http.StatusMethodNotAllowed,
			"This proxy only serves CONNECT. Set it as the proxy for HTTPS, and use its SOCKS port for all else.")
	}
	host, digits, err := net.SplitHostPort(request.Host)
	port, bad := strconv.ParseUint(digits, 10, 16)
	if err != nil || bad != nil || host == "" || port == 0 {
		return refusal(http.StatusBadRequest, "CONNECT needs a host and a port, as in example.org:443.")
	}
	return o.connect(end, host, uint16(port))
}

// refusal ends the connection with an HTTP error whose body is text.
func refusal(status int, text string) engine.Step {
	return engine.Step{Reply: httpAnswer(status, text), Close: true}
}

// connectReply returns the answer for an errno.
func connectReply(errno syscall.Errno) []byte {
	switch errno {
	case 0:
		return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
	case syscall.ETIMEDOUT:
		return httpAnswer(http.StatusGatewayTimeout, "The server does not answer.")
	case syscall.EACCES, syscall.EPERM:
		return httpAnswer(http.StatusForbidden, "Connections to this server are not allowed.")
	case syscall.EAGAIN:
		return httpAnswer(http.StatusServiceUnavailable, "Too many names are being resolved. Try again later.")
	}
	return httpAnswer(http.StatusBadGateway, fmt.Sprintf("The server cannot be reached: %v.", errno))
}

func httpAnswer(status int, text string) []byte {
	allow := ""
	if status == http.StatusMethodNotAllowed {
		allow = "Allow: CONNECT\r\n"
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n%sConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s\n",
		status, http.StatusText(status), allow, len(text)+1, text)
}
