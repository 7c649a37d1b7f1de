package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
)

// The commands of a root besides signing members: making and renewing signers, and replacing the
// root.

func caSigner(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "signer NEWDIR",
		Short: "Create a signer, which signs members so that the root's key can be kept offline",
		Args:  cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root, err := collective.OpenCA(*dir)
			if err != nil {
				return err
			}
			s, err := root.NewSigner(args[0])
			if err != nil {
				return err
			}
			fmt.Println(s.Subject())
			fmt.Fprintf(os.Stderr, "%s can sign until %s. It needs only %s, and nothing from %s.\n", s.Subject(), s.NotAfter().Format(time.DateOnly), args[0], *dir)
			return nil
		},
	}
}

func caRenew(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "renew SIGNER.CRT",
		Short: "Print a new certificate for a signer of this root",
		Args:  cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root, err := collective.OpenCA(*dir)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read the signer's certificate: %w", err)
			}
			renewed, err := root.RenewSigner(data)
			if err != nil {
				return err
			}
			if _, err := os.Stdout.Write(renewed); err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, "To install it, on the signer's host: dcol ca take --signer FILE")
			return nil
		},
	}
}

func caTake(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "take [--roots FILE] [--lists FILE] [--signer FILE]",
		Short: "Copy changes from another authority of the collective",
		Args:  cli.Exactly(0),
	}
	roots := cmd.Flags().String("roots", "", "the other authority's ca.crt, a `file`")
	lists := cmd.Flags().String("lists", "", "the other authority's ca.crl, a `file`")
	signer := cmd.Flags().String("signer", "", "the output of dcol ca renew, a `file`")
	cmd.MarkFlagsOneRequired("roots", "lists", "signer")
	cmd.RunE = func(*cobra.Command, []string) error {
		var read [3][]byte
		for i, path := range []string{*roots, *lists, *signer} {
			if path == "" {
				continue
			}
			var err error
			if read[i], err = os.ReadFile(path); err != nil {
				return fmt.Errorf("read the changes: %w", err)
			}
		}
		ca, err := collective.OpenCA(*dir)
		if err != nil {
			return err
		}
		if _, err := ca.TakeTrust(read[0], read[1]); err != nil {
			return err
		}
		if *signer == "" {
			return nil
		}
		renewed, err := ca.TakeSigner(read[2])
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s can sign until %s.\n", renewed.Subject(), renewed.NotAfter().Format(time.DateOnly))
		return nil
	}
	return cmd
}

func caRotate(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate NEWDIR",
		Short: "Create a second root, signed by this one",
		Args:  cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root, err := collective.OpenCA(*dir)
			if err != nil {
				return err
			}
			next, err := root.Successor(args[0])
			if err != nil {
				return err
			}
			fmt.Println(next.CertFile())
			fmt.Fprintf(os.Stderr, "%s has two roots now. Copy %s and %s to every member and signer before the new root signs anything.\n"+
				"When all certificates of the old root have expired: dcol ca retire --dir %s\n", next.Name(), next.CertFile(), next.CRLFile(), args[0])
			return nil
		},
	}
}

func caRetire(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "retire",
		Short: "End the old root, so that this one is the only root",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			root, err := collective.OpenCA(*dir)
			if err != nil {
				return err
			}
			if err := root.DropOthers(); err != nil {
				return err
			}
			fmt.Println(root.CertFile())
			fmt.Fprintf(os.Stderr, "Copy %s to every member. Certificates of the other root and its signers then stop working there.\n", root.CertFile())
			return nil
		},
	}
}
