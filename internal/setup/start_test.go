package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

// This program takes the agent's place: Start runs it, and it does what its configuration file says.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "agent" && os.Args[2] == "--config" && os.Args[4] == "--log" {
		if err := beAgent(os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "time=now level=INFO msg=\"something else\"\nerror: "+err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func beAgent(config string) error {
	data, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	socket, isSocket := strings.CutPrefix(string(data), "listen at ")
	if !isSocket {
		return errors.New(string(data))
	}
	listener, err := api.Listen(socket)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return api.Serve(ctx, listener, idle{pid: os.Getpid()})
}

type idle struct {
	api.Agent
	pid int
}

func (a idle) Status(context.Context) (api.Status, error) {
	return api.Status{Schema: api.StatusSchema, Member: fmt.Sprint(a.pid), Problems: []string{}}, nil
}

func TestStartAlone(t *testing.T) {
	dir := t.TempDir()
	h := Host{Config: filepath.Join(dir, "agent.conf"), State: dir}
	socket := filepath.Join(dir, "s")
	write := func(text string) {
		if err := os.WriteFile(h.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("the port is taken")
	_, err := h.Start(t.Context(), socket)
	if err == nil || !strings.Contains(err.Error(), "it ended: exit status 1\nthe port is taken\nits log is "+dir+"/agent.log") {
		t.Errorf("an agent that ends: %v", err)
	}

	write("listen at " + socket)
	running, err := h.Start(t.Context(), socket)
	if err != nil || running.Before || running.Systemd || running.Log != filepath.Join(dir, "agent.log") {
		t.Fatalf("%+v, %v", running, err)
	}
	status, err := api.Dial(socket).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(status.Member, &pid)
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGTERM) })
	if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
		t.Errorf("it would end with its terminal: process group %d of %d, %v", sid, pid, err)
	}
	if again, err := h.Start(t.Context(), socket); err != nil || !again.Before {
		t.Errorf("%+v, %v", again, err)
	}
}
