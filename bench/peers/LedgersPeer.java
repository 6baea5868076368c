import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's own client, told by lines what to do with a ledger on E3 Qw2. Argument: the metadata
 * service's URI. Every line is answered by one.
 *
 * create QA     "ledger ID": of a client of its own, the owner
 * add N         "added N": entries that hold their ids, all acknowledged; "failed CODE"
 * close         "closed": the ledger, and its owner
 * abandon       "abandoned": the owner has gone, and closed nothing
 * read ID       "read NUMBER...": what some bookie gives, to a new client; "refused WHY"
 */
public final class LedgersPeer {
    private static final byte[] PASSWORD = "prove".getBytes();

    private final ClientConfiguration conf = new ClientConfiguration();
    private BookKeeper owner;
    private LedgerHandle ledger;

    private LedgersPeer(String uri) {
        conf.setMetadataServiceUri(uri);
        // With no spare bookie a write set of one is what is left: an ack quorum of one goes on.
        conf.setDelayEnsembleChange(true);
    }

    public static void main(String[] args) throws Exception {
        LedgersPeer peer = new LedgersPeer(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            long argument = words.length > 1 ? Long.parseLong(words[1]) : 0;
            System.out.println(peer.answer(words[0], argument));
            System.out.flush();
        }
        System.exit(0);
    }

    private String answer(String command, long argument) throws Exception {
        switch (command) {
            case "create":
                owner = new BookKeeper(conf);
                ledger = owner.createLedger(3, 2, (int) argument, DigestType.CRC32C, PASSWORD);
                return "ledger " + ledger.getId();
            case "add":
                return add((int) argument);
            case "close":
                ledger.close();
                owner.close();
                return "closed";
            case "abandon":
                owner.close();
                return "abandoned";
            case "read":
                return read(argument);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private String add(int messages) throws Exception {
        CountDownLatch answered = new CountDownLatch(messages);
        AtomicInteger failed = new AtomicInteger();
        long first = ledger.getLastAddPushed() + 1;
        for (long number = first; number < first + messages; number++) {
            ledger.asyncAddEntry(Long.toString(number).getBytes(), (code, handle, id, context) -> {
                if (code != BKException.Code.OK) {
                    failed.set(code);
                }
                answered.countDown();
            }, null);
        }
        answered.await();
        return failed.get() == 0 ? "added " + messages : "failed " + failed.get();
    }

    private String read(long id) throws Exception {
        StringBuilder found = new StringBuilder("read");
        try (BookKeeper client = new BookKeeper(conf)) {
            LedgerHandle reader;
            try {
                reader = client.openLedger(id, DigestType.CRC32C, PASSWORD);
            } catch (BKException error) {
                return "refused " + error.getMessage().replace('\n', ' ');
            }
            for (long number = 0; number <= reader.getLastAddConfirmed(); number++) {
                try {
                    byte[] entry = reader.readEntries(number, number).nextElement().getEntry();
                    found.append(' ').append(new String(entry));
                } catch (BKException error) {
                    continue; // no bookie that is there has it
                }
            }
            reader.close();
        }
        return found.toString();
    }
}
