package bus

import (
	"fmt"
	"strconv"
	"strings"
)

// External describes one nats-server of an external cluster.
type External struct {
	Name   string // the member name in its certificate
	Listen string // host:port for members and coordinators
	Dir    string // where it keeps accounts and JetStream

	// PEM files: a certificate of the collective for the server's name, with its chain; its key; the roots.
	Certificate, Key, CA string
}

// ServerConfig returns the configuration of a nats-server (v2.12 or later) for this collective's bus. To join several
// servers to a cluster, the operator adds a `cluster` block with its own TLS, in a file that the text includes.
func (a *Authority) ServerConfig(e External) (string, error) {
	operator, err := encodeClaims(a.operatorClaims(), a.operator)
	if err != nil {
		return "", err
	}
	account, err := a.AccountJWT()
	if err != nil {
		return "", err
	}
	system, err := a.systemJWT()
	if err != nil {
		return "", err
	}
	for _, s := range []string{e.Name, e.Listen, e.Dir, e.Certificate, e.Key, e.CA} {
		if s == "" || strings.ContainsAny(s, "\"\\\n") {
			return "", fmt.Errorf("write a nats-server's configuration: %q is empty or has characters that do not fit between quotation marks", s)
		}
	}
	q := strconv.Quote
	var b strings.Builder
	for _, line := range []string{
		"# nats-server for the collective " + a.state.Collective + "; written by dcol.",
		"server_name: " + q(e.Name),
		"listen: " + q(e.Listen),
		"",
		"# Only who has a certificate of the collective hears a word.",
		"tls {",
		"  cert_file: " + q(e.Certificate),
		"  key_file: " + q(e.Key),
		"  ca_file: " + q(e.CA),
		"  verify: true",
		"  min_version: \"1.3\"",
		"  handshake_first: true",
		"}",
		"",
		"# And who has a user JWT of the collective's account as well. The resolver takes new",
		"# versions of the account, with those expelled, from the coordinator.",
		"operator: " + operator,
		"system_account: " + publicKey(a.system),
		"resolver {",
		"  type: full",
		"  dir: " + q(e.Dir+"/accounts"),
		"  interval: \"2s\" # a server that was away learns by then who was expelled",
		"}",
		"resolver_preload {",
		"  " + publicKey(a.system) + ": " + system,
		"  " + publicKey(a.account) + ": " + account,
		"}",
		"",
		"jetstream {",
		"  store_dir: " + q(e.Dir+"/jetstream"),
		fmt.Sprintf("  max_file_store: %d", maxStore),
		"  sync_interval: always # what is acknowledged outlives a power cut of all servers",
		"}",
		"",
		fmt.Sprintf("max_pending: %d # bytes that wait for one who reads slowly", maxPending),
		fmt.Sprintf("write_deadline: %q", writeDeadline),
		"no_fast_producer_stall: true",
		"",
		"include ./cluster.conf",
	} {
		b.WriteString(line + "\n")
	}
	return b.String(), nil
}
