package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/paths/pathserver"
)

func pathsFlowCommand() *cobra.Command {
	var at, file string
	cmd := &cobra.Command{
		Use:   "flow SOURCE DESTINATION",
		Short: "Ask a path server which path a connection takes",
		Long: `Asks a path server which routers the packets of a TCP connection pass in each direction. SOURCE and
DESTINATION are the connection's ends, each an address with a port, as ss shows them. The server
computes the answer. The command identifies itself with the identity that the agent's
configuration names.`,
		Example: "  dcol paths flow --server controller@192.0.2.1:45674 10.0.1.1:61000 10.0.2.1:443",
		Args:    cli.Exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, addr, ok := strings.Cut(at, "@")
			if !ok || name == "" || addr == "" {
				return errors.New("--server must be NAME@HOST:PORT, such as controller@192.0.2.1:45674")
			}
			var ends [2]netip.AddrPort
			for i, arg := range args {
				var err error
				if ends[i], err = netip.ParseAddrPort(arg); err != nil {
					return fmt.Errorf("%q must be an address with a port, such as 192.0.2.1:443 or [2001:db8::1]:443", arg)
				}
			}
			id, err := memberIdentity(file)
			if err != nil {
				return err
			}
			server := pathserver.Client{Identity: id, Name: name, Addr: addr}
			a, err := server.Flow(cmd.Context(), ends[0], ends[1])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(os.Stdout, "there  %s\nback   %s\n", strings.Join(a.There, " "), strings.Join(a.Back, " "))
			return err
		},
	}
	cmd.Flags().StringVar(&at, "server", "", "the path server, as `NAME@HOST:PORT` (required)")
	cmd.Flags().StringVarP(&file, "config", "c", config.DefaultPath, "the configuration `file`, which names the identity")
	return cmd
}

// memberIdentity returns the identity that an agent's configuration names.
func memberIdentity(file string) (*collective.Identity, error) {
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return collective.Load(collective.Files{
		Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL,
	}, cli.Log("info"))
}
