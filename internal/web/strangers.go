package web

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// mostStrangers bounds the connections on which no session was seen. Every user of this host can open connections, and
// each takes memory of the agent. If there are more, the oldest is closed. A browser whose connection was closed opens
// another one.
const mostStrangers = 128

// strangers holds the connections on which no session was seen, the oldest first.
type strangers struct {
	mu   sync.Mutex
	list []net.Conn
}

// take follows the state of a connection. It is a Server's ConnState.
func (s *strangers) take(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.add(c)
	case http.StateClosed, http.StateHijacked:
		s.drop(c)
	default:
	}
}

func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, c)
	if len(s.list) > mostStrangers {
		_ = s.list[0].Close() // the browser sees what happened
		s.list = slices.Delete(s.list, 0, 1)
	}
}

func (s *strangers) drop(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(x net.Conn) bool { return x == c })
}

type recogniseKey struct{}

// context adds to a connection's context what recognise calls. It is a Server's ConnContext.
func (s *strangers) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, recogniseKey{}, sync.OnceFunc(func() { s.drop(c) }))
}

// recognise records that a session was seen on a request's connection.
func recognise(ctx context.Context) {
	if drop, ok := ctx.Value(recogniseKey{}).(func()); ok {
		drop()
	}
}
