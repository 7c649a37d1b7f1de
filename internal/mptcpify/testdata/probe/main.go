// Command probe dials itself over TCP through package net and prints the
// protocol of the listening, the dialling and the accepted socket.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false)
	listener, err := plain.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	client, err := dialer.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		return err
	}
	defer server.Close()
	for _, s := range []struct {
		name string
		conn syscall.Conn
	}{
		{"listener", listener.(*net.TCPListener)},
		{"client", client.(*net.TCPConn)},
		{"server", server.(*net.TCPConn)},
	} {
		if err := show(s.name, s.conn); err != nil {
			return err
		}
	}
	return nil
}

func show(name string, conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	const soProtocol = 38
	return raw.Control(func(fd uintptr) {
		protocol, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, soProtocol)
		fmt.Println(name, protocol, err)
	})
}
