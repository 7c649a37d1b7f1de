package mptcp_test

import (
	"errors"
	"testing"

	"github.com/detour-collective/dcol/internal/mptcp"
	"github.com/detour-collective/dcol/internal/mptcp/internal/threehosts"
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
	if key, value, err := server.UserspacePMSysctl(); err != nil || key == "" || value == "" {
		t.Errorf("on another host: %q, %q, %v", key, value, err)
	}
}
