package client

import "github.com/detour-collective/dcol/internal/converter/engine"

// Proxy returns a front for programs that use a SOCKS5 or an HTTP proxy: the first byte shows which.
func (c *Client) Proxy() engine.Front { return proxyFront{c} }

type proxyFront struct{ client *Client }

// Open implements engine.Front.
func (f proxyFront) Open(a engine.Accepted) (engine.Opening, error) {
	return &proxy{client: f.client, accepted: a}, nil
}

// proxy is the state of one connection.
type proxy struct {
	client         *Client
	accepted       engine.Accepted
	engine.Opening // nil until the first byte has come
}

// Read implements engine.Opening.
func (o *proxy) Read(b []byte) engine.Step {
	if o.Opening == nil {
		if len(b) == 0 {
			return engine.Step{}
		}
		var front engine.Front
		switch first := b[0]; {
		case first == socksVersion:
			front = o.client.SOCKS()
		case first|0x20 >= 'a' && first|0x20 <= 'z': // a method of HTTP
			front = o.client.CONNECT()
		case first == socks4:
			return engine.Step{Reply: socks4Refusal, Close: true}
		default: // such as that of a program that speaks TLS to its proxy
			return engine.Step{Close: true}
		}
		opening, err := front.Open(o.accepted)
		if err != nil {
			return engine.Step{Close: true}
		}
		o.Opening = opening
	}
	return o.Opening.Read(b)
}

// Hear implements engine.Hearer.
func (o *proxy) Hear(b []byte) (more bool) {
	h, is := o.Opening.(engine.Hearer)
	return is && h.Hear(b)
}

// Spoke implements engine.Witness.
func (o *proxy) Spoke(spoke bool) {
	if l, is := o.Opening.(engine.Witness); is {
		l.Spoke(spoke)
	}
}
