// Command fetch connects to a server, sends a line, and prints the server's address and what it sends back.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	fmt.Printf("%v %s %d\n", conn.RemoteAddr(), line, len(rest))
	return nil
}
