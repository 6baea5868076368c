import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's own check of every ledger: each bookie of each fragment is asked for every entry that
 * it is to have.
 *
 * Arguments: ZooKeeper's address, the ledgers root. Prints "whole N" (ledgers), or "lacks ID
 * FRAGMENT" for each fragment that lacks copies, and ends with status 1.
 */
public final class CopiesCheck {
    private CopiesCheck() {}

    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + args[0] + args[1]);
        conf.setReadEntryTimeout(10);
        List<String> lacking = new ArrayList<>();
        int ledgers = 0;
        try (BookKeeper client = new BookKeeper(conf);
                BookKeeperAdmin admin = new BookKeeperAdmin(client, conf)) {
            LedgerChecker checker = new LedgerChecker(client);
            for (long id : admin.listLedgers()) {
                ledgers++;
                try (LedgerHandle ledger = admin.openLedgerNoRecovery(id)) {
                    for (LedgerFragment fragment : check(checker, ledger)) {
                        lacking.add("lacks " + id + " " + fragment);
                    }
                }
            }
        }
        lacking.forEach(System.out::println);
        if (lacking.isEmpty()) {
            System.out.println("whole " + ledgers);
        }
        System.exit(lacking.isEmpty() ? 0 : 1);
    }

    private static Set<LedgerFragment> check(LedgerChecker checker, LedgerHandle ledger)
            throws Exception {
        CompletableFuture<Set<LedgerFragment>> found = new CompletableFuture<>();
        checker.checkLedger(
                ledger,
                (code, fragments) -> {
                    if (code == BKException.Code.OK) {
                        found.complete(fragments);
                    } else {
                        found.completeExceptionally(BKException.create(code));
                    }
                },
                100L);
        return found.get(120, TimeUnit.SECONDS);
    }
}
