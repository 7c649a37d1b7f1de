package emulink

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Stage()
	// Otherwise hosts and emulators built with -race take a second each to exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m)
}

func TestRequestsOfAnUnknownLinkAreRefused(t *testing.T) {
	w, err := Start(t.Context(), nil, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Scheduling() == "" {
		t.Error("does not say how it is scheduled")
	}
	for _, link := range []int{-1, 0, 1} {
		_, _, statsErr := w.Stats(link)
		for what, err := range map[string]error{
			"set": w.Set(link, Params{}, Params{}), "down": w.Down(link, true), "stats": statsErr,
		} {
			if err == nil || !strings.Contains(err.Error(), "there is no link") {
				t.Errorf("%s of link %d: %v", what, link, err)
			}
		}
	}
	if err := w.Reset(); err != nil {
		t.Errorf("it does not answer after refusals: %v", err)
	}
	if err := w.Set(0, Params{Loss: 2}, Params{}); err == nil || !strings.Contains(err.Error(), "loss 2") {
		t.Errorf("bad parameters: %v", err)
	}
}

func TestAnEmulatorThatDiedIsReported(t *testing.T) {
	var logged bytes.Buffer
	w, err := Start(t.Context(), nil, 1, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-w.exited
	if err := w.Reset(); err == nil {
		t.Error("a dead emulator answers")
	}
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("close says %v", err)
	}
	if !strings.Contains(logged.String(), "ended by itself") {
		t.Errorf("logged %q", logged.String())
	}
}

func TestStartIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, nil, 1, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("started")
	}
}

// TestCarriesPackets uses packet sockets in place of devices. The loop only needs each read and each write to
// be one packet.
func TestCarriesPackets(t *testing.T) {
	pair := func(name string) (device, end *os.File) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		device, end = os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
		t.Cleanup(func() { device.Close(); end.Close() })
		return device, end
	}
	devA, a := pair("a")
	devB, b := pair("b")
	const delay = 20 * time.Millisecond
	w, err := Start(t.Context(), []Link{{A: devA, B: devB, AtoB: Params{Delay: delay}}}, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	exchange := func(from, to *os.File, packet string) time.Duration {
		t.Helper()
		start := time.Now()
		if _, err := from.WriteString(packet); err != nil {
			t.Fatal(err)
		}
		var got [DefaultMTU]byte
		n, err := to.Read(got[:])
		if err != nil || string(got[:n]) != packet {
			t.Fatalf("received %q, %v, want %q", got[:n], err, packet)
		}
		return time.Since(start)
	}
	if took := exchange(a, b, "there"); took < delay {
		t.Errorf("took %v, less than the delay of %v", took, delay)
	}
	exchange(b, a, "and back")
	ab, ba, err := w.Stats(0)
	if err != nil || ab.Packets != 1 || ab.Bytes != 5 || ba.Packets != 1 || ba.Bytes != 8 {
		t.Errorf("counted %+v and %+v, %v", ab, ba, err)
	}
	if err := errors.Join(w.Down(0, true), w.Reset()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.WriteString("into the void"); err != nil {
		t.Fatal(err)
	}
	for ab.DownDrops == 0 {
		if ab, _, err = w.Stats(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Down(0, false); err != nil {
		t.Fatal(err)
	}
	exchange(a, b, "again")
}
