package testbed

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"text/template"
)

//go:embed rules/*.nft
var ruleFiles embed.FS

// rules are templates of nft's input. Each replaces a whole table.
var rules = template.Must(template.ParseFS(ruleFiles, "rules/*.nft"))

// setRules replaces a table of the host by the result of a template.
func (h *Host) setRules(name string, data any) error {
	var text strings.Builder
	if err := rules.ExecuteTemplate(&text, name, data); err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	return h.Nft(context.Background(), text.String())
}

// Nft executes commands of nft on the host. Either all take effect or none.
func (h *Host) Nft(ctx context.Context, commands string) error {
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: install it: apt-get install nftables", err)
	}
	if err != nil {
		return fmt.Errorf("host %s: set nftables rules: %w: %s", h.Name(), err, strings.TrimSpace(string(out)))
	}
	return nil
}
