package api

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"
)

// TransportSchema is the version of Transport.
const TransportSchema = "dcol.transport/1"

// Transport describes what the agent changes about TCP on this host.
type Transport struct {
	Schema string `json:"schema"`
	// Available lists the congestion controls that the kernel has now, including dcol's.
	Available []string `json:"available"`
	// Default is the congestion control of connections that no table covers.
	Default    string       `json:"default"`
	Congestion []Congestion `json:"congestion"`
	// Problem is the reason why tables of the configuration are not applied, and how to fix it.
	Problem string `json:"problem,omitempty"`
	// Options is set if this host exchanges TCP options with others.
	Options *Options `json:"options,omitempty"`
}

// Options describes the TCP options by which this host and others ask each other for settings.
type Options struct {
	Networks []string `json:"networks"` // networks of peers; none: all
	Known    []Option `json:"known"`
	// Counts count the requests since the agent started, by option and verdict.
	Counts []OptionCount `json:"counts"`
	// Recent lists the last requests, by others and by this host, the oldest first.
	Recent []OptionReport `json:"recent"`
	// Calls is the approximate number of calls of the kernel's program. Each call takes time.
	Calls uint64 `json:"calls"`
	// Unannounced lists the networks to which nothing is announced for a while: a SYN with an announcement was lost there,
	// and the next one, without it, was answered.
	Unannounced []Unannounced `json:"unannounced"`
	// UnannouncedInternet is the time until which nothing is announced to the Internet, because of several such networks in a
	// row.
	UnannouncedInternet time.Time `json:"unannounced_internet,omitzero"`
}

// Unannounced describes a network to which nothing is announced until a time.
type Unannounced struct {
	Network netip.Prefix `json:"network"`
	Until   time.Time    `json:"until"`
}

// Option describes a TCP option.
type Option struct {
	Name   string `json:"name"`
	Asks   string `json:"asks,omitempty"`   // what this host asks of others
	Grants string `json:"grants,omitempty"` // what it grants to them
}

// OptionCount counts requests.
type OptionCount struct {
	Option  string `json:"option"`
	Verdict string `json:"verdict"`
	Count   uint64 `json:"count"`
}

// CompareOptionCounts orders counts by option and verdict.
func CompareOptionCounts(a, b OptionCount) int {
	return cmp.Or(strings.Compare(a.Option, b.Option), strings.Compare(a.Verdict, b.Verdict))
}

// OptionReport describes a peer's request and its result, or a request that this host has sent.
type OptionReport struct {
	At     time.Time      `json:"at"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Option string         `json:"option"`
	Asked  string         `json:"asked"`
	// Verdict is granted or capped, or sent for this host's own requests. For a refusal it is the reason: malformed,
	// out-of-bounds, unknown, untrusted, late or refused.
	Verdict string `json:"verdict"`
	Granted string `json:"granted,omitempty"` // the value that is in force
	Why     string `json:"why,omitempty"`
}

// Congestion describes a table [[congestion]] of the configuration.
type Congestion struct {
	Use      string   `json:"use"`
	Name     string   `json:"name"` // the name that the kernel and ss use
	Cgroup   string   `json:"cgroup,omitempty"`
	Ports    []int    `json:"ports,omitempty"`
	Networks []string `json:"networks,omitempty"`
	// Set counts the connections, and subflows of MPTCP connections, that got it. Refused counts those for which the
	// kernel refused it.
	Set     uint64 `json:"set"`
	Refused uint64 `json:"refused"`
	// AtRunTime is set if dcol cc use requested it instead of the configuration.
	AtRunTime bool `json:"at_run_time,omitempty"`
}

// CongestionRequest requests a congestion control for future connections.
type CongestionRequest struct {
	Use      string   `json:"use"`
	Cgroup   string   `json:"cgroup,omitempty"`   // a folder; empty: all programs
	Ports    []int    `json:"ports,omitempty"`    // of servers; none: all
	Networks []string `json:"networks,omitempty"` // of peers; none: all
	// Reset undoes earlier CongestionRequests. All other fields must be empty.
	Reset bool `json:"reset,omitempty"`
}

// UseCongestion changes the congestion control of connections, and returns the new state.
func (c *Client) UseCongestion(ctx context.Context, r CongestionRequest) (Transport, error) {
	return post[Transport](ctx, c, "/v1/congestion", r)
}

// Transport requests what the agent changes about TCP.
func (c *Client) Transport(ctx context.Context) (Transport, error) {
	t, err := get[Transport](ctx, c, "/v1/transport")
	return t, checkSchema(err, t.Schema, TransportSchema)
}
