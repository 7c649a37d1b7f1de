// Package remote lets a process of the lab call methods in another one, over the other's standard input and
// output. It is net/rpc on a pair of pipes.
package remote

import (
	"errors"
	"io"
	"net/rpc"
	"os"
)

// service is the name under which receivers are registered.
const service = "Remote"

// Serve answers calls of the receiver's methods from in until in ends. The methods must have the form that net/rpc
// requires.
func Serve(receiver any, in io.Reader, out io.Writer) error {
	server := rpc.NewServer()
	if err := server.RegisterName(service, receiver); err != nil {
		return err
	}
	server.ServeConn(pipes{in, out, nil})
	return nil
}

// Client calls methods in another process. Its methods may be called from any goroutine.
type Client struct{ rpc *rpc.Client }

// NewClient calls methods in the process with these standard files. Closing the client closes stdin, which
// ends the process's Serve.
func NewClient(stdin io.WriteCloser, stdout io.Reader) *Client {
	return &Client{rpc.NewClient(pipes{stdout, stdin, stdin})}
}

// Call calls a method and waits for its result, which reply points to. A nil reply discards it.
func (c *Client) Call(method string, args, reply any) error {
	return c.rpc.Call(service+"."+method, args, reply)
}

// Close ends the connection.
func (c *Client) Close() error {
	if err := c.rpc.Close(); err != nil && !errors.Is(err, rpc.ErrShutdown) && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// pipes is a connection of two pipes.
type pipes struct {
	io.Reader
	io.Writer
	close io.Closer // nil: not ours to close
}

func (p pipes) Close() error {
	if p.close == nil {
		return nil
	}
	return p.close.Close()
}
