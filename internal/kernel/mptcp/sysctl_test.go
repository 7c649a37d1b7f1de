package mptcp_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

// What is looked at is the namespace in which Open was called, whichever thread
// looks.
func TestSwitchedOff(t *testing.T) {
	n := threehosts.New(t)
	client, server := open(t, n.Client), open(t, n.Server)
	n.Client.Sysctl(t, "net/mptcp/enabled", "0")
	if _, _, err := client.UserspacePMSysctl(); !errors.Is(err, mptcp.ErrSwitchedOff) {
		t.Errorf("error %v, want %v", err, mptcp.ErrSwitchedOff)
	}
	if err := client.CheckUserspacePM(); !errors.Is(err, mptcp.ErrSwitchedOff) {
		t.Errorf("check: %v, want %v", err, mptcp.ErrSwitchedOff)
	}
	if key, value, err := server.UserspacePMSysctl(); err != nil || key == "" || value == "" {
		t.Errorf("on another host: %q, %q, %v", key, value, err)
	}
}

// Whoever gives new sockets to another path manager is found out, and with them the sysctl that gives them back.
func TestDisplaced(t *testing.T) {
	n := threehosts.New(t)
	client := open(t, n.Client)
	key, want, err := client.UserspacePMSysctl()
	if err != nil {
		t.Fatal(err)
	}
	n.Client.Sysctl(t, key, want)
	if err := client.CheckUserspacePM(); err != nil {
		t.Errorf("while it is ours: %v", err)
	}
	other := map[string]string{"userspace": "kernel", "1": "0"}[want]
	n.Client.Sysctl(t, key, other)
	d, ok := errors.AsType[*mptcp.DisplacedError](client.CheckUserspacePM())
	if !ok || d.Sysctl != strings.ReplaceAll(key, "/", ".") || d.Value != other || d.Want != want {
		t.Errorf("after somebody took it: %v", client.CheckUserspacePM())
	}
}
