package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/units"
)

func caCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Manage a collective's certificates, in files",
	}
	dir := cmd.PersistentFlags().String("dir", ".", "the authority's `directory`")
	cmd.AddCommand(caInit(dir), caIssue(dir), caRevoke(dir), caSigner(dir), caRenew(dir), caTake(dir), caRotate(dir), caRetire(dir))
	return cmd
}

func caInit(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a certificate authority",
		Args:  cli.Exactly(0),
	}
	name := cmd.Flags().String("name", "collective", "the collective's `name`")
	cmd.RunE = func(*cobra.Command, []string) error {
		ca, err := collective.InitCA(*dir, *name)
		if err != nil {
			return err
		}
		fmt.Println(ca.CertFile())
		fmt.Fprintf(os.Stderr, "%s is created. Copy %s and %s to every member; ca.key stays here.\n", ca.Name(), ca.CertFile(), ca.CRLFile())
		return nil
	}
	return cmd
}

func caIssue(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue NAME",
		Short: "Create a key and a certificate for a member",
		Args:  cli.Exactly(1),
	}
	valid := units.Duration(365 * 24 * time.Hour)
	cmd.Flags().Var(cli.Duration{Duration: &valid}, "valid", "how long the certificate is valid")
	reissue := cmd.Flags().Bool("reissue", false, "replace a member's existing files")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		ca, err := collective.OpenCA(*dir)
		if err != nil {
			return err
		}
		issued, err := ca.Issue(collective.Request{Name: args[0], Validity: valid.Std(), Reissue: *reissue})
		if err != nil {
			return err
		}
		fmt.Printf("%s\n%s\n", issued.CertFile, issued.KeyFile)
		fmt.Fprintf(os.Stderr, "%s is a member until %s. Copy these files and %s to its host, then remove the key here.\n",
			issued.Name, issued.NotAfter.Format(time.DateOnly), ca.CertFile())
		return nil
	}
	return cmd
}

func caRevoke(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NAME|SERIAL",
		Short: "Revoke a member's certificates, or the one with a serial number",
		Args:  cli.Exactly(1),
	}
	why := cmd.Flags().String("why", collective.PrivilegeWithdrawn.String(), "the `reason`, such as key-compromise or expelled")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		reason, err := collective.ParseReason(*why)
		if err != nil {
			return err
		}
		ca, err := collective.OpenCA(*dir)
		if err != nil {
			return err
		}
		revoked, err := ca.Revoke(args[0], reason)
		if err != nil {
			return err
		}
		for _, c := range revoked {
			fmt.Println(c.Serial)
		}
		fmt.Fprintf(os.Stderr, "Copy %s to every member. It takes effect there at once, and open sessions end.\n", ca.CRLFile())
		return nil
	}
	return cmd
}
