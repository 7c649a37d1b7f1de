package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/doctor"
)

// doctorTimeout bounds all checks together.
const doctorTimeout = 20 * time.Second

func doctorCommand() *cobra.Command {
	var path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what dcol needs of this host, and name the mend of what is lacking",
		Long: `Looks at each thing dcol needs of this host and says its state and, where it is
lacking, the mend. Changes nothing. Exit code 1 when something has failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			env := doctor.Host()
			env.Now = time.Now()
			env.Config, env.Identity, env.AgentRuns = memberEnv(ctx, path)
			report := doctor.NewReport(doctor.Examine(ctx, env, doctor.Checks()))
			show := func() error { return report.Text(os.Stdout) }
			if asJSON {
				show = func() error { return printJSON(report) }
			}
			if err := show(); err != nil {
				return err
			}
			if !report.Healthy() {
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "the configuration `file`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON ("+doctor.Schema+")")
	return cmd
}

// memberEnv is what the configuration says, the identity it names, and whether
// the agent answers.
func memberEnv(ctx context.Context, path string) (dc doctor.Config, di doctor.Identity, runs bool) {
	dc.Path = path
	socket := config.DefaultSocket
	c, err := config.Load(path)
	if err != nil {
		dc.Err, di.Err = err, err
	} else {
		dc.Client, dc.Waypoint, dc.Listen = c.Has(config.RoleClient), c.Has(config.RoleWaypoint), c.Session.Listen
		socket = c.Socket()
		identity, err := collective.Load(collective.Files{
			Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL,
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			di.Err = err
		} else {
			di.NotAfter, di.NotBefore = identity.Self().NotAfter, identity.Self().NotBefore
		}
	}
	_, err = api.Dial(socket).Status(ctx)
	return dc, di, err == nil
}
