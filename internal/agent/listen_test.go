package agent

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

// A choice that dcol convert wrote before the socket was open is in effect. The file is a FIFO, so that the test knows
// when the agent reads it: the socket must be open by then.
func TestListenReadsTheChoiceAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	before := &config.Config{RunDir: dir}
	before.Client.Converter.Use = config.ConvertAuto
	p := &Plan{config: before, file: file}
	open := make(chan error, 1)
	go func() {
		w, err := os.OpenFile(file, os.O_WRONLY, 0) // waits for the agent
		if err != nil {
			open <- err
			return
		}
		defer w.Close()
		c, err := net.Dial("unix", before.Socket())
		if err == nil {
			c.Close()
		}
		_, _ = w.WriteString(`name = "alice"
roles = ["client"]
[identity]
certificate = "a.crt"
key = "a.key"
ca = "ca.crt"
[client.converter]
use = "never"
`)
		open <- err
	}()
	listener, err := p.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if got := p.config.Client.Converter.Use; got != config.ConvertNever {
		t.Fatalf("converters are used for %q, want %q", got, config.ConvertNever)
	}
	if err := <-open; err != nil {
		t.Errorf("the file was read before the socket was open: %v", err)
	}
	if before.Client.Converter.Use != config.ConvertAuto {
		t.Error("the caller's configuration has changed")
	}
}
