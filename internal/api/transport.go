package api

import (
	"context"
	"net/http"
)

// TransportSchema is the version of Transport.
const TransportSchema = "dcol.transport/1"

// Transport describes what the agent changes about TCP on this host.
type Transport struct {
	Schema string `json:"schema"`
	// Available are the congestion controls that the kernel has now, those of dcol included.
	Available []string `json:"available"`
	// Default is the one of connections that no table covers.
	Default    string       `json:"default"`
	Congestion []Congestion `json:"congestion"`
	// Problem is the reason why the tables are not in force, and how to fix it.
	Problem string `json:"problem,omitempty"`
}

// Congestion describes a table [[congestion]] of the configuration.
type Congestion struct {
	Use      string   `json:"use"`
	Name     string   `json:"name"` // as the kernel and ss have it
	Cgroup   string   `json:"cgroup,omitempty"`
	Ports    []int    `json:"ports,omitempty"`
	Networks []string `json:"networks,omitempty"`
	// Set counts the connections, and subflows of MPTCP connections, that got it, and Refused those to which the
	// kernel refused it.
	Set     uint64 `json:"set"`
	Refused uint64 `json:"refused"`
}

// Transport requests what the agent changes about TCP.
func (c *Client) Transport(ctx context.Context) (Transport, error) {
	var t Transport
	err := c.ask(ctx, http.MethodGet, "/v1/transport", nil, &t)
	if err == nil {
		err = sameSchema(t.Schema, TransportSchema)
	}
	return t, err
}
