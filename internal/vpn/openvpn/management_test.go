package openvpn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// speak gives a management connection to a fake openvpn that answers each line by script.
func speak(t *testing.T, answer func(line string) string) (m *management, notices *[]notice, hangUp func()) {
	t.Helper()
	ours, theirs := net.Pipe()
	m = &management{conn: ours}
	notices = &[]notice{}
	read, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		m.read(func(n notice) { *notices = append(*notices, n) })
	}()
	go func() {
		defer close(written)
		lines := bufio.NewScanner(theirs)
		for lines.Scan() {
			if _, err := fmt.Fprint(theirs, answer(lines.Text())); err != nil {
				return
			}
		}
	}()
	return m, notices, func() {
		theirs.Close()
		<-written
		<-read
		ours.Close()
	}
}

func TestManagement(t *testing.T) {
	m, notices, hangUp := speak(t, func(line string) string {
		switch line {
		case "list":
			return "one\r\n>STATE:0,WAIT\r\ntwo\r\nEND\r\n"
		case "bad":
			return "ERROR: unknown command, enter 'help' for more options\r\n"
		}
		return "SUCCESS: " + line + "\r\n>INFO:after " + line + "\r\n"
	})
	m.post("first")
	lines, err := m.ask(t.Context(), "list", true)
	if err != nil || !slices.Equal(lines, []string{"one", "two"}) {
		t.Errorf("list: %q, %v", lines, err)
	}
	for range 3 { // errors do not put the order out
		if _, err := m.ask(t.Context(), "bad", true); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("bad: %v", err)
		}
		if _, err := m.ask(t.Context(), "good", false); err != nil {
			t.Errorf("good: %v", err)
		}
	}
	hangUp()
	if len(*notices) != 5 || (*notices)[0] != (notice{"INFO", "after first"}) || (*notices)[1] != (notice{"STATE", "0,WAIT"}) {
		t.Errorf("notices: %q", *notices)
	}
	if _, err := m.ask(t.Context(), "late", false); !errors.Is(err, errSilent) {
		t.Errorf("asked after the end: %v", err)
	}
}

// An openvpn that hangs up or falls silent fails what waits for it.
func TestManagementWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, hangUp := speak(t, func(string) string { return "" })
		began := time.Now()
		if _, err := m.ask(t.Context(), "status 3", true); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != answerTime {
			t.Errorf("a silent openvpn: %v after %v", err, time.Since(began))
		}
		failed := make(chan error)
		go func() {
			_, err := m.ask(t.Context(), "status 3", true)
			failed <- err
		}()
		synctest.Wait()
		hangUp()
		if err := <-failed; !errors.Is(err, errSilent) {
			t.Errorf("one that hangs up: %v", err)
		}
	})
}
